"""Checks of the suite itself: sabotaged frameworks, vacuous tests, seed sweeps, reviews of changed tests."""
