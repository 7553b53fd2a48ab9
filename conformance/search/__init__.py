"""Searches for a failing case by Hypothesis: settings, shrinking, and the test to paste."""
