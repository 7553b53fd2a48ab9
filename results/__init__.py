"""Records of runs, their crash-safe journal, comparisons, tables and the report."""
