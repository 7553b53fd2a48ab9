"""Property-based tests: generated programs, dropout masks, operations and calls match the oracle; their verdicts."""
