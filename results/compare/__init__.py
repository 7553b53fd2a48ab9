"""What changed between two records."""
