"""What a framework may do that is no computation: each behaviour with the outcome of the test that it happens in."""

from tests.support.behaviours import deadly, raised, returned, side_effects
from tests.support.behaviours.registry import BEHAVIOURS, BIG, DEADLY, surroundings

__all__ = ["BEHAVIOURS", "BIG", "DEADLY", "deadly", "raised", "returned", "side_effects", "surroundings"]
