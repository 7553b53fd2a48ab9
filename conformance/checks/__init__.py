"""Helpers of the suites' tests: checks, the subject and its oracle, new processes; and the outcome of a test."""
