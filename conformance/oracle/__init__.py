"""Expected results: the scaler's automaton, the reference's envelope, bounds, and their cache."""
