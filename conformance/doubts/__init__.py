"""Doubts about the suite itself: blinded frameworks, vacuous tests, verdicts that depend on the seed."""
