"""Collection of the suites: the parameters of tests, and their order."""
