"""Shared code of benchmarks: sample files, measuring processes, and the command line."""
