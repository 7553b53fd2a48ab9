"""Running the suites: pytest plugin, recorder, processes, baselines."""
