"""History: the outcome of each clause in each version of one package, with the versions where it changed."""
