"""Tests of gradient accumulation."""
