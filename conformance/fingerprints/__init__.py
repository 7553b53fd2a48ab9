"""Fingerprints: what every public callable of a package does on generated calls, to be compared with another version."""
