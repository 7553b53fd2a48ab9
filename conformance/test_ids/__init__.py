"""Inventory of the suites' tests and their dependencies, read from source without importing it."""
