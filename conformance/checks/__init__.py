"""API for tests, and classification of outcomes."""
