"""Tests of mixed precision and of master weights."""
