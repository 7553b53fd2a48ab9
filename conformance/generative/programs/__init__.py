"""Generated programs: cases, their execution on a framework and on the oracle, and comparison."""
