"""A run of the suites: the pytest plugin, the recorder, the processes, the baselines."""
