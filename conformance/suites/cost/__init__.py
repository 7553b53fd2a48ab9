"""Tests of bytes and times."""
