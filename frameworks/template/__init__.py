"""The adapter of template, for the conformance suite."""
