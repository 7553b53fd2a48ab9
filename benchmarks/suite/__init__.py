"""What a run of the suites costs: start-up, one worker or two, and time as clauses are added."""
