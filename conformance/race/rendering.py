"""A race as text, Markdown and JSON."""

import math
from collections.abc import Iterator

from conformance.race.statistics import PairInterval, RaceJudgement, RaceSamples, RaceVerdict
from results.record.files import one_line
from results.record.values import plain, to_text
from results.show.marks import words

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_HEAD = ("cost", "verdict", "old", "new", "new / old (99 %)", "old / old (99 %)")


def table(samples: RaceSamples, judgement: RaceJudgement) -> str:
    """One line for each cost, after what raced."""
    rows = [_HEAD, *map(_row, judgement.verdicts)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "".join(f"{one_line(line)}\n" for line in (*_heading(samples, judgement), *lines, _conclusion(judgement)))


def markdown(samples: RaceSamples, judgement: RaceJudgement) -> str:
    """The same as Markdown."""
    rows = [_HEAD, ("---",) * len(_HEAD), *(tuple(map(words, _row(verdict))) for verdict in judgement.verdicts)]
    heading = map(words, _heading(samples, judgement))
    lines = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join((*heading, "", *lines, "", words(_conclusion(judgement)))) + "\n"


def to_json(samples: RaceSamples, judgement: RaceJudgement) -> str:
    """Verdicts and intervals as JSON."""
    document = {
        "framework": samples.framework,
        "place": samples.place,
        "fixture": samples.fixture,
        "versions": [samples.old, samples.new],
        "pairs": len(samples.pairs),
        "load": list(samples.load),
        "status": judgement.status,
        "yardstick": _bounds(judgement.yardstick),
        "costs": {
            verdict.cost.key: {
                "outcome": verdict.outcome.value,
                "old": verdict.old,
                "new": verdict.new,
                "ratio": _bounds(verdict.ratio),
                "twin": _bounds(verdict.twin),
                "why": verdict.why,
            }
            for verdict in judgement.verdicts
        },
    }
    return to_text(plain(document))


def _bounds(interval: PairInterval) -> list[float] | None:
    return None if interval.refusal else [interval.estimate, interval.low, interval.high]


def _heading(samples: RaceSamples, judgement: RaceJudgement) -> Iterator[str]:
    loads = f"; load {' to '.join(f'{load:.1f}' for load in samples.load)}" if samples.load else ""
    yield f"{samples.framework} {samples.old} → {samples.new}, {samples.place}, {samples.fixture}{loads}"
    yield f"yardstick, the same NumPy work: {judgement.yardstick}"
    yield from judgement.notes
    yield from (f"{verdict.cost.title}: {verdict.why}" for verdict in judgement.verdicts if verdict.why)


def _row(verdict: RaceVerdict) -> tuple[str, ...]:
    sides = (_amount(value, verdict.cost.timed) for value in (verdict.old, verdict.new))
    ratios = (
        "none" if interval.refusal else f"{interval.estimate:.3f} ({interval.low:.3f}–{interval.high:.3f})"
        for interval in (verdict.ratio, verdict.twin)
    )
    return verdict.cost.title, verdict.outcome.value, *sides, *ratios


def _amount(value: float, timed: bool) -> str:
    if not timed:
        return f"{value / 2**20:.1f} MiB"
    size, unit = next((pair for pair in _UNITS if value >= pair[0]), _UNITS[-1])
    return f"{value / size:.3g} {unit}" if math.isfinite(value) else "none"


def _conclusion(judgement: RaceJudgement) -> str:
    worse = [verdict.cost.title for verdict in judgement.verdicts if verdict.outcome == "worse"]
    if judgement.status == 2:
        return "Cannot be judged; free a core, or race more --pairs."
    return f"Worse: {', '.join(worse)}." if worse else "Nothing is worse."
