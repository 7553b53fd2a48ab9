"""Comparison of records: verdicts, demands, numbers, costs, environments, and the ratio of two costs."""
