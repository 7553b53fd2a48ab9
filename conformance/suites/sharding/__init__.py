"""Tests of ranks."""
