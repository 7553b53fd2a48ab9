"""An encoder that reads digits row by row, for scenarios of ranks and offload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from conformance.scenarios.digits_accumulation import digits_setting
from conformance.scenarios.scenario import Scenario, Setting, Side, accuracy
from fixtures import models
from fixtures.layers import Head, Heads
from fixtures.model import Batch
from fixtures.recipe import Adam, Recipe

PIXELS, CLASSES = 28, 10
PLAIN = Recipe(Adam(3e-3))
LEARNS_IN = 23


def _rows(batch: Batch) -> Batch:
    """Digits (N, 784) as sequences (N, PIXELS, PIXELS), a row of pixels a token; the first token's label counts."""
    count = len(batch)
    labels = np.repeat(batch.targets["output"][:, None], PIXELS, axis=1)
    mask = np.zeros((count, PIXELS), np.float32)
    mask[:, 0] = 1.0
    return Batch(batch.inputs.reshape(count, PIXELS, PIXELS), {"output": labels}, mask)


def _setting() -> Setting:
    encoder = models.encoder(width=PIXELS, length=PIXELS, embedded=False)
    layers = (*encoder.layers[:-1], Heads((Head("output", CLASSES),)))
    digits = digits_setting()
    about = f"{digits.about}; a row of pixels is a token"
    return Setting(replace(encoder, layers=layers), _rows(digits.train), _rows(digits.test), about)


def reading_digits(
    name: str,
    beside: str,
    source: str,
    sides: tuple[Side, ...],
    published: Mapping[tuple[str, str], str],
    emulated: int = LEARNS_IN,
) -> Scenario:
    """A scenario with these sides.

    Args:
        beside: the comparison, in a few words.
        emulated: number of rounds on the reference.
    """
    return Scenario(
        name=name,
        title=f"An encoder of two blocks reads digits row by row, Adam 3e-3: {beside}",
        source=source,
        setting=_setting,
        sides=sides,
        batch=64,
        epochs=3,
        shorter={"emulated": emulated},
        learns_in=LEARNS_IN,
        quality=accuracy(position=0),
        published=published,
    )
