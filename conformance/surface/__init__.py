"""The public callables of a framework's techniques, and which of their parameters the suites use."""
