"""Sweeps: one suite judges many versions of frameworks and their companions, each in an environment of its own."""
