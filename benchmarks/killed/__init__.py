"""What is left of a run whose processes are killed at random moments: records, verdicts and other processes."""
