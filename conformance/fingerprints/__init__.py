"""Fingerprints: what the public callables of a package do on generated calls, for comparisons of versions."""
