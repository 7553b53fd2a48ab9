"""What the rules make of the recorded samples, as Markdown by name of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.calibration import trials
from benchmarks.calibration.others import OTHERS
from benchmarks.calibration.rates import Rate
from benchmarks.calibration.rules import Rule, controlled, paired
from benchmarks.calibration.samples import STORE, Recording, name
from benchmarks.calibration.trials import Trial
from results.compare.ratio import FEWEST

PAIRS = {"interleaved": (10, 20, 30, 40, 60, 80), "separate": (10, 20, 30, 40, 60)}

Row = tuple[str, Rule, Sequence[Trial]]


def rows(recording: Recording) -> list[Row]:
    """Each rule by the name that readers see, with the trials that it is put to."""
    if recording.design == "interleaved":
        alike = trials.within(recording)
        return [("this suite, in pairs", paired, alike), *((other, rule, alike) for other, rule in OTHERS.items())]
    alone = trials.between(recording)
    return [
        ("multiples of the plain step", controlled, trials.between(recording, "plain")),
        ("multiples of NumPy work", controlled, trials.between(recording, "foreign")),
        ("times alone, in pairs", paired, alone),
        *((other, rule, alone) for other, rule in OTHERS.items()),
    ]


def recorded(recording: Recording) -> str:
    """When and where a recording was made, what it holds, and how much slower the slower side was in truth."""
    others = np.percentile([run.others for run in recording.runs], [0, 50, 100])
    processes = len({run.process for run in recording.runs})
    least, middle, most = (f"{share:.1f}" for share in others)
    return (
        f"{recording.started} to {recording.finished}; {recording.machine}. {len(recording.runs)} runs in {processes} "
        f"processes, {len(next(iter(recording.runs[0].times.values())))} rounds each; meanwhile other processes kept "
        f"{middle} cores busy (from {least} to {most}). Over all samples the slower side was slower by "
        f"{100 * (trials.slowdown(recording) - 1):.2f} %."
    )


def table(recording: Recording, title: str, rate: Callable[[Rule, Sequence[Trial], int], Rate]) -> str:
    """One rate of every rule by number of samples of a side."""
    pairs = PAIRS[recording.design]
    return "\n".join(_table(recording, title, rate, pairs))


def _table(
    recording: Recording, title: str, rate: Callable[[Rule, Sequence[Trial], int], Rate], pairs: Sequence[int]
) -> Iterator[str]:
    yield f"| {title} | " + " | ".join(map(str, pairs)) + " |"
    yield "|---|" + "--:|" * len(pairs)
    for label, rule, put in rows(recording):
        yield f"| {label} | " + " | ".join(rate(rule, put, count).told for count in pairs) + " |"


def block(recording: Recording) -> str:
    """A recording's text and both of its tables."""
    count = len(rows(recording)[0][2])
    return "\n\n".join(
        (
            recorded(recording),
            table(recording, f"false alarms in {count} comparisons of identical work", trials.false_alarms),
            table(recording, f"5 % more work detected, in {count} comparisons", trials.found),
        )
    )


def promise() -> str:
    """What the suite's rule comes to with the fewest samples that it judges, and the one that it had for two runs.

    Raises:
        ValueError: a file of samples holds none.
        OSError: it cannot be read.
    """
    told = [f"With {FEWEST} samples of each side:\n"]
    for design, rule, where in (
        ("interleaved", paired, "timed in turn, in one process"),
        ("separate", controlled, "in two processes, in multiples of the plain step, which is not judged any more"),
    ):
        calm, crowded = (rows(STORE.load(name(design, disturbed)))[0][2] for disturbed in (False, True))
        alarms = trials.false_alarms(rule, [*calm, *crowded], FEWEST)
        told.append(
            f"- {where}: {alarms.told} false alarms in the {alarms.total} comparisons of both recordings, "
            f"{trials.found(rule, calm, FEWEST).told} of the slowdowns detected next to a busy core, "
            f"{trials.found(rule, crowded, FEWEST).told} on the crowded machine"
        )
    return "\n".join(told)


def blocks() -> dict[str, str]:
    """Every generated block by the name in its markers.

    Raises:
        ValueError: a file of samples holds none.
        OSError: it cannot be read.
    """
    found = {
        f"{design}, {'disturbed' if disturbed else 'quiet'}": block(STORE.load(name(design, disturbed)))
        for design in PAIRS
        for disturbed in (False, True)
    }
    return {"promise": promise(), **found}
