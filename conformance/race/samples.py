"""The samples of a race, in a document that can be stored and judged again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from results.record.files import RecordError, packed, read, replace
from results.record.values import parse, plain, to_line

OLD, NEW, TWIN = "old", "new", "twin"
"""Sides: the twin is a second process of the old version."""


@dataclass(frozen=True)
class SideSamples:
    """What one process gave.

    Attributes:
        rounds: nanoseconds of each round, by work.
        once: what a process gives once: nanoseconds of `import` and `first`, bytes of `memory`.
    """

    rounds: Mapping[str, Sequence[float]]
    once: Mapping[str, float]


FIXTURES = ("encoder", "digits-mlp", "small-mlp")
"""Models that can be raced; `conformance.race.worker` makes them."""

PairSamples = Mapping[str, SideSamples]
"""Processes that took turns, by side."""


@dataclass(frozen=True)
class RaceSamples:
    """The samples of a race.

    Attributes:
        framework, place, fixture: what raced. old, new: versions. numpy: its versions, of the old and the new side.
        count: steps in a sample. load: the machine's load average before the first and after the last pair.
    """

    framework: str
    place: str
    fixture: str
    old: str
    new: str
    numpy: tuple[str, str]
    count: int
    pairs: tuple[dict[str, SideSamples], ...]
    load: tuple[float, ...] = ()
    started: str = ""
    version: Literal[1] = field(default=1)


def write(path: Path, samples: RaceSamples) -> None:
    """Writes the samples, compressed if the name ends in .gz.

    Raises:
        RecordError: the file cannot be written.
    """
    replace(path, packed(path, to_line(plain(samples)).encode("utf-8") + b"\n"))


def load(path: Path) -> RaceSamples:
    """The samples in a file.

    Raises:
        RecordError: it cannot be read, or has no samples.
    """
    try:
        samples: RaceSamples = parse(read(path), RaceSamples)
    except ValueError as error:
        raise RecordError(path, f"has no samples of a race ({error})", "run the race again") from None
    return samples
