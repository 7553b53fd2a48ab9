"""A user's own training loop as a framework of the suite."""
