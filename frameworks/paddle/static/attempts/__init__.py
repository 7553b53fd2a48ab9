"""Attempts in the static graph, each of which runs in a separate process: some of Paddle's failures end it."""
