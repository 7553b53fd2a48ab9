"""Timed workloads: three fixtures, in float32 and in mixed precision, large enough to fill the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from conformance.timing.costs import Fixture, equal_blocks, example, products, transformer_block
from fixtures.data import token_batch
from fixtures.models import encoder
from fixtures.recipe import BFLOAT16, FLOAT16, FLOAT32, Adam, DynamicScaling, Precision, Recipe
from frameworks.contract import Capability, Framework, needs

TF32 = "tensorfloat32"

FILLING: dict[str, Callable[[], Fixture]] = {
    "products": products,
    "transformer block": transformer_block,
    "sine and cosine": example,
}
BRIEF: dict[str, Callable[[], Fixture]] = {
    "products": lambda: equal_blocks(4, 512, 512, inputs=16),
    "transformer block": lambda: (encoder(256, 8, 1, 128), token_batch(8, 128, ragged=False)),
    "sine and cosine": example,
}
"""For a CPU: the first two in sizes that one core trains in a tenth of a second."""


@dataclass(frozen=True)
class RooflineCase:
    """A fixture in a precision; `format` is that of its products, `TF32` for float32 that may round to it."""

    fixture: str
    precision: Precision
    format: str

    @property
    def recipe(self) -> Recipe:
        """How it is trained: Adam, and float16 under a dynamic loss scale."""
        return Recipe(Adam(1e-3), self.precision, DynamicScaling() if self.precision == FLOAT16 else None)


def fixtures(device: str) -> dict[str, Callable[[], Fixture]]:
    """The fixtures for a device, by name."""
    return BRIEF if device == "cpu" else FILLING


def cases(framework: Framework) -> Iterator[RooflineCase]:
    """The cases whose every capability the framework declares."""
    has_tf32 = framework.declares(Capability.TF32).supported
    for fixture in FILLING:
        for precision in (FLOAT32, FLOAT16, BFLOAT16):
            formats = ("float32", TF32) if precision == FLOAT32 and has_tf32 else (precision.format,)
            for name in formats:
                case = RooflineCase(fixture, precision, name)
                if all(framework.declares(capability).supported for capability in _needs(case)):
                    yield case


def _needs(case: RooflineCase) -> tuple[Capability, ...]:
    wide = (Capability.FLOAT64_HEADS,) if case.fixture == "sine and cosine" else ()
    return (*needs(case.recipe), *wide)
