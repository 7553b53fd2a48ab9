"""One file with the suite, a framework's wheels and a script that runs them without a network."""
