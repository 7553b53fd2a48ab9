"""Changes between two records."""
