"""What must hold: the specification as data, the suites that judge it, and the failures that are known."""
