"""Attempts in the static graph, each of which runs in a process of its own: some of Paddle's failures end it."""
