"""Tests of recomputation."""
