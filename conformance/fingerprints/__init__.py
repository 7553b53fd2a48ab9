"""Fingerprints: results of generated calls of a package's public callables, to compare versions of the package."""
