"""The specification as data, clause by clause and finding by finding, and its readers."""
