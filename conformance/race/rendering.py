"""A race as text, Markdown and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator

from conformance.race.estimates import PairInterval
from conformance.race.judgement import RaceJudgement, RaceVerdict
from conformance.race.samples import RaceSamples
from results.record.files import one_line
from results.record.values import plain, to_text
from results.show.marks import words

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_HEAD = ("cost", "verdict", "old", "new", "new / old (99 %)", "old / old (99 %)")


def table(samples: RaceSamples, judgement: RaceJudgement) -> str:
    """One line for each cost, after what raced."""
    rows = [_HEAD, *(_row(each) for each in judgement.verdicts)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "".join(f"{one_line(line)}\n" for line in (*_about(samples, judgement), *lines, _last(judgement)))


def markdown(samples: RaceSamples, judgement: RaceJudgement) -> str:
    """The same as Markdown."""
    about = [words(line) for line in _about(samples, judgement)]
    rows = [_HEAD, tuple("---" for _ in _HEAD), *(tuple(map(words, _row(each))) for each in judgement.verdicts)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join((*about, "", *lines, "", words(_last(judgement)))) + "\n"


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
        "yardstick": _interval(judgement.yardstick),
        "costs": {each.cost.key: _document(each) for each in judgement.verdicts},
    }
    return to_text(plain(document))


def _document(one: RaceVerdict) -> dict[str, object]:
    sides = {"old": one.old, "new": one.new}
    ratios = {"ratio": _interval(one.ratio), "twin": _interval(one.twin)}
    return {"outcome": one.outcome.value, **sides, **ratios, "why": one.why}


def _interval(one: PairInterval) -> list[float] | None:
    return None if one.refusal else [one.estimate, one.low, one.high]


def _about(samples: RaceSamples, judgement: RaceJudgement) -> Iterator[str]:
    loads = f"; load {' to '.join(f'{each:.1f}' for each in samples.load)}" if samples.load else ""
    yield f"{samples.framework} {samples.old} → {samples.new}, {samples.place}, {samples.fixture}{loads}"
    yield f"yardstick, the same NumPy work: {judgement.yardstick}"
    yield from judgement.notes
    yield from (f"{each.cost.title}: {each.why}" for each in judgement.verdicts if each.why)


def _row(one: RaceVerdict) -> tuple[str, ...]:
    sides = [_amount(value, one.cost.timed) for value in (one.old, one.new)]
    return one.cost.title, one.outcome.value, *sides, _range(one.ratio), _range(one.twin)


def _range(one: PairInterval) -> str:
    return "none" if one.refusal else f"{one.estimate:.3f} ({one.low:.3f}–{one.high:.3f})"


def _amount(value: float, timed: bool) -> str:
    if not timed:
        return f"{value / 2**20:.1f} MiB"
    size, unit = next((pair for pair in _UNITS if value >= pair[0]), _UNITS[-1])
    return f"{value / size:.3g} {unit}" if math.isfinite(value) else "none"


def _last(judgement: RaceJudgement) -> str:
    return {
        0: "Nothing is worse.",
        1: f"Worse: {', '.join(each.cost.title for each in judgement.verdicts if each.outcome == 'worse')}.",
        2: "Cannot be judged; free a core, or race more --pairs.",
    }[judgement.status]
