"""Checks of the suite itself: reviews of clauses whose tests changed, and phrases that need a second reading."""
