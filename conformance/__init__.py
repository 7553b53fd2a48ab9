"""The conformance suite: the specification as data, the tests, and known failures."""
