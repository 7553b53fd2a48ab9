"""Tests of costs: saved bytes, allocator peaks, step times and the adapter's overhead."""
