"""Races: times and memory of two versions of a framework, in processes that live side by side and take turns."""

FIXTURES = ("encoder", "digits-mlp", "small-mlp")
"""Models that can be raced; `conformance.race.worker` makes them."""
PAIRS, FEWEST_PAIRS = 8, 5
"""Pairs of processes: by default, and at least."""
OLD, NEW, TWIN = "old", "new", "twin"
"""Sides: the twin is a second process of the old version."""


class RaceError(RuntimeError):
    """A race cannot be run; the message is one line."""
