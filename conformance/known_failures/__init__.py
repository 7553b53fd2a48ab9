"""Known failures: entries, their versions, and updates from records."""
