"""Makes the suites' options and fixtures known wherever pytest is started in this checkout."""

pytest_plugins = ["conformance.runner.plugin"]
