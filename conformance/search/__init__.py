"""Search for a failing case with Hypothesis: settings, shrinking, and the test to paste."""
