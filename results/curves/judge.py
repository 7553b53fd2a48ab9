"""Judges whether two runs are the same training, from their curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from results.curves.growth import NORMS, UNITS, Aligned, align, envelope, first_excess, levels, limits
from results.curves.reading import Curve, Numbers, Series

Kind = Literal["identical", "rounding", "factor", "shift", "rate", "data", "scale", "fault", "non-finite", "unknown"]

SETTINGS: Mapping[str, Kind] = {"learning_rate": "rate", "loss_scale": "scale", "skipped": "scale"}
"""Series that a run sets instead of computing them from its weights, and the kind of a difference in them."""
NAMES: Mapping[str, str] = {
    "gradient_norm": "gradient norm",
    "clipped_norm": "norm after clipping",
    "learning_rate": "learning rate",
    "loss_scale": "loss scale",
    "skipped": "skipped steps",
}
LONGEST_SHIFT = 16
"""Largest number of steps by which a curve is shifted to find the other."""
SMALLEST_FACTOR = 0.05
"""Distance of a factor's logarithm from 0 below which a constant ratio is no factor but a drift."""
LARGEST_COUNT = 64
"""Largest number of micro-batches or ranks that names a factor; powers of two go on to 2^32."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on one series.

    Attributes:
        start: first step at which it holds, None for none.
        text: one line without the series' name.
        limit: (n,), the largest difference that rounding explains, in units of the series, at `steps`.
    """

    series: str
    kind: Kind
    start: int | None
    text: str
    curves: Aligned | None = None
    limit: Numbers | None = None

    @property
    def worse(self) -> bool:
        """Whether more than rounding differs."""
        return self.kind not in ("identical", "rounding", "unknown")

    @property
    def name(self) -> str:
        """The series' name in a sentence."""
        return NAMES.get(self.series, self.series)


@dataclass(frozen=True)
class Judgement:
    """The verdicts on two runs, the one that explains most first.

    Attributes:
        status: 0, nothing is worse than rounding; 1, something is; 2, it cannot be judged.
        sentence: the result in one sentence.
        notes: what was not compared, in one line each.
    """

    verdicts: tuple[Verdict, ...]
    status: int
    sentence: str
    notes: tuple[str, ...]


def compare_curves(
    old: Curve, new: Curve, controls: Sequence[Curve] = (), format_name: str = "", names: Sequence[str] = ()
) -> Judgement:
    """Judge every series that both runs have.

    Args:
        controls: further runs of the old code, which show how far rounding alone drives it.
        format_name: format of matrix products, "" for that of the files, or float32 where they say none.
        names: series to judge, all for none.
    """
    formats = [name for name in (format_name, old.format, new.format) if name in UNITS]
    stated = formats[0] if format_name else max(formats, key=lambda name: UNITS[name], default="")
    common = [name for name in old.series if name in new.series and (not names or name in names)]
    notes = [*old.notes, *new.notes]
    if old.format and new.format and old.format != new.format:
        notes.append(f"the old run computes in {old.format}, the new one in {new.format}")
    skip = find_other_skip(old.series, new.series, stated)
    if skip is not None and any(_has_grown(old, new, name, skip, stated) for name in common if name not in SETTINGS):
        old, new = cut(old, skip), cut(new, skip)
        notes.append(
            f"from step {skip} on the runs skip other steps, as overflows near the limit do; judged until there"
        )
    verdicts = []
    if old.batches and new.batches and (not names or "batch" in names):
        verdicts.append(_judge_batches(old.batches, new.batches))
    for name in common:
        runs = [control.series[name] for control in controls if name in control.series]
        hides = name == "clipped_norm" and "gradient_norm" in common
        hidden = align(old.series["gradient_norm"], new.series["gradient_norm"]) if hides else None
        if len(runs) < len(controls) and name not in SETTINGS:
            verdicts.append(Verdict(name, "unknown", None, "is missing in a control: leave it out with --series"))
            continue
        verdicts.append(_judge(name, old.series[name], new.series[name], runs, stated, hidden))
    verdicts.sort(key=_order)
    alone = sorted(set(old.series) ^ set(new.series))
    if alone and not names:
        notes.append(f"only in one run, and not compared: {', '.join(alone)}")
    status, sentence = _conclude(verdicts, old, new)
    return Judgement(tuple(verdicts), status, sentence, tuple(notes))


def find_other_skip(old: Mapping[str, Series], new: Mapping[str, Series], stated: str) -> int | None:
    """Return the first step that a loss scaler skips in one run alone, None for none."""
    steps = []
    for name in {"loss_scale", "skipped", *NORMS} & old.keys() & new.keys():
        shared, a, b = np.intersect1d(old[name].steps, new[name].steps, assume_unique=True, return_indices=True)
        before, after = old[name].values[a], new[name].values[b]
        if name == "loss_scale":
            odd = np.flatnonzero(before != after)[:1]
            falls = [values[i] < values[i - 1] for i in odd for values in (before, after) if i]
            steps += [int(shared[i]) for i in odd if len(falls) == 2 and falls[0] != falls[1]]
        elif name == "skipped" or stated == "float16":
            odd = np.flatnonzero(np.isfinite(before) != np.isfinite(after) if name in NORMS else before != after)
            steps += [int(step) for step in shared[odd[:1]]]
    return min(steps, default=None)


def _has_grown(old: Curve, new: Curve, name: str, step: int, stated: str) -> bool:
    """Return whether the runs differ before a step by more than the first updates explain, so that overflows may."""
    curves = align(_cut_series(old.series[name], step), _cut_series(new.series[name], step))
    format_name = stated or "float32"
    return bool(len(curves.steps)) and bool(
        levels(curves, UNITS[format_name])[-1] > math.log2(UNITS[format_name]) + limits(format_name, name).early[1]
    )


def _cut_series(series: Series, step: int) -> Series:
    kept = series.steps < step
    return replace(series, steps=series.steps[kept], values=series.values[kept])


def cut(curve: Curve, step: int) -> Curve:
    """Return the curve before a step."""
    return replace(curve, series={name: _cut_series(series, step) for name, series in curve.series.items()})


def _order(verdict: Verdict) -> tuple[bool, float, int]:
    """Sort by the step at which it begins; at one step the settings, which cause the rest, come first.

    A wrong setting of a step shows in the next loss.
    """
    ranks = ["batch", *SETTINGS, "clipped_norm", "gradient_norm", "loss"]
    rank = ranks.index(verdict.series) if verdict.series in ranks else len(ranks)
    cause = rank <= len(SETTINGS)
    if verdict.series in NORMS and verdict.kind == "factor":
        rank = len(SETTINGS)
    start = math.inf if verdict.start is None else verdict.start
    return not verdict.worse, start - 0.5 * cause, rank


def _conclude(verdicts: Sequence[Verdict], old: Curve, new: Curve) -> tuple[int, str]:
    known = [verdict for verdict in verdicts if verdict.kind != "unknown"]
    worse = [verdict for verdict in known if verdict.worse]
    if worse:
        others = [verdict for verdict in worse[1:] if verdict.start is not None]
        follow = "; then " + ", ".join(f"{v.name} from step {v.start}" for v in others) if others else ""
        return 1, f"not the same training: {worse[0].name} {worse[0].text}{follow}"
    if unknown := [verdict for verdict in verdicts if verdict.kind == "unknown"]:
        return 2, f"cannot be judged: {unknown[0].name} {unknown[0].text}"
    if not known:
        have = " and ".join(f"{c.path} has {', '.join(c.series)}" for c in (old, new))
        return 2, f"cannot be judged: no series in common; {have}; name columns with --series"
    if all(verdict.kind == "identical" for verdict in known):
        text = known[0].text if len(known) == 1 else f"and {len(known) - 1} more series are identical"
        return 0, f"the same training: {known[0].name} {text}"
    first = min(v.start for v in known if v.kind == "rounding" and v.start is not None)
    return 0, f"the same training: only rounding differs, from step {first} on"


def _judge_batches(old: Mapping[int, str], new: Mapping[int, str]) -> Verdict:
    steps = sorted(old.keys() & new.keys())
    if not steps:
        return Verdict("batch", "unknown", None, "has no steps in common")
    start = next((step for step in steps if old[step] != new[step]), None)
    if start is None:
        return Verdict("batch", "identical", None, f"checksums are equal in {len(steps)} steps")
    for k in _shifts():
        rest = [step for step in steps if step >= start and step + k in old]
        if rest and all(new[step] == old[step + k] for step in rest):
            return Verdict("batch", "data", start, f"is from step {start} on that of {_ahead(k)}")
    return Verdict("batch", "data", start, f"is another one from step {start} on")


def _shifts() -> Iterator[int]:
    for k in range(1, LONGEST_SHIFT + 1):
        yield from (k, -k)


def _ahead(k: int) -> str:
    return f"{abs(k)} step{'s' * (abs(k) > 1)} {'later' if k > 0 else 'before'} in the old run"


def _judge(
    name: str, old: Series, new: Series, controls: Sequence[Series], stated: str, hidden: Aligned | None
) -> Verdict:
    """Judge one series.

    Args:
        hidden: curves whose differences this one does not show at every step: the norm before clipping, None for none.
    """
    shared, a, b = np.intersect1d(old.steps, new.steps, assume_unique=True, return_indices=True)
    if len(shared) < 2:
        return Verdict(name, "unknown", None, f"has {len(shared)} steps in common: {_spans(old)}, and {_spans(new)}")
    curves = align(old, new)
    if len(odd := np.flatnonzero(np.isfinite(old.values[a]) != np.isfinite(new.values[b]))):
        step, which = int(shared[odd[0]]), "new" if np.isfinite(old.values[a][odd[0]]) else "old"
        value = (new.values[b] if which == "new" else old.values[a])[odd[0]]
        return Verdict(name, "non-finite", step, f"is {value} in the {which} run from step {step}", curves)
    if not len(curves.steps):
        return Verdict(name, "unknown", None, "is never finite")
    if np.array_equal(curves.old, curves.new):
        return Verdict(
            name, "identical", None, f"is identical in {len(curves.steps)} steps{_resolution(curves)}", curves
        )
    if name in SETTINGS:
        return _judge_setting(name, old, new, curves)
    return _judge_computed(name, old, new, curves, controls, stated, hidden)


def _spans(series: Series) -> str:
    if not len(series.steps):
        return "none"
    interval = int(np.median(np.diff(series.steps))) if len(series.steps) > 1 else 0
    return f"{series.steps[0]} to {series.steps[-1]} by {interval}"


def _resolution(curves: Aligned) -> str:
    if not curves.quantum:
        return ""
    share = curves.quantum / float(np.median(curves.scale))
    return f", as far as decimals of {curves.quantum:g} show (2^{math.log2(share):.0f} of its value)"


def _first_difference(curves: Aligned) -> int:
    return int(np.flatnonzero(curves.old != curves.new)[0])


def _judge_setting(name: str, old: Series, new: Series, curves: Aligned) -> Verdict:
    """Judge a series that is set: it differs, by a factor or a shift, or is equal up to the formats of its numbers."""
    close = np.isclose(curves.new, curves.old, rtol=2.0**-20, atol=1.001 * curves.quantum)
    if close.all():
        return Verdict(name, "rounding", int(curves.steps[_first_difference(curves)]), "differs in last digits", curves)
    index = int(np.flatnonzero(~close)[0])
    start = int(curves.steps[index])
    before, after = float(curves.old[index]), float(curves.new[index])
    if SETTINGS[name] == "rate" and (k := _find_shift(old, new, start, curves)):
        return Verdict(name, "shift", start, f"is from step {start} on that of {_ahead(k)}", curves)
    ratios = curves.new[~close] / np.where(curves.old[~close] == 0, np.nan, curves.old[~close])
    if len(ratios) > 1 and np.all(np.abs(ratios / ratios[0] - 1) < 2.0**-18) and SETTINGS[name] == "rate":
        return Verdict(name, "rate", start, f"is {ratios[0]:.6g} times the old one from step {start}", curves)
    what = "skips other steps" if name == "skipped" else f"is {after:g}, was {before:g}, at step {start}"
    return Verdict(name, SETTINGS[name], start, what, curves)


def _find_shift(old: Series, new: Series, start: int, curves: Aligned) -> int:
    """Return the number of steps by which the new curve from `start` on is that of the old one, 0 for none.

    A shift counts if it leaves so much less of the difference that the improvement is no chance: by Schwarz's criterion
    for one parameter more, over at least four steps.
    """
    tail = new.steps >= start
    interval = int(np.median(np.diff(old.steps)))
    best: tuple[float, int] = (0.0, 0)
    for k in _shifts():
        shared, a, b = np.intersect1d(
            old.steps, new.steps[tail] + k * interval, assume_unique=True, return_indices=True
        )
        plain = np.isin(old.steps, new.steps[tail][b]) & np.isfinite(old.values)
        if len(shared) < 4 or np.count_nonzero(plain) != len(shared):
            continue
        target = new.values[tail][b]
        apart = [float(np.nanmean((old.values[rows] - target) ** 2)) for rows in (a, plain)]
        floor = (2.0**-20 * float(np.nanmax(np.abs(target))) + curves.quantum) ** 2
        if apart[1] <= floor:
            continue
        gain = len(shared) / 2 * math.log(apart[1] / max(apart[0], floor)) - math.log(len(shared))
        if apart[0] < apart[1] / 16 and gain > best[0]:
            best = (gain, k * interval)
    return best[1]


def _judge_computed(
    name: str,
    old: Series,
    new: Series,
    curves: Aligned,
    controls: Sequence[Series],
    stated: str,
    hidden: Aligned | None,
) -> Verdict:
    unit = UNITS[stated or "float32"]
    level = levels(curves, unit)
    if hidden is not None and len(hidden.steps) == len(curves.steps):
        level = np.maximum(level, levels(hidden, unit))
    interval = max(1, int(np.median(np.diff(curves.steps)))) if len(curves.steps) > 1 else 1
    if controls:
        pairs = [align(a, b) for a, b in combinations([old, *controls], 2)]
        if not all(len(pair.steps) for pair in pairs):
            return Verdict(name, "unknown", None, "has no steps in common in two controls", curves)
        index, limit = _leave_envelope(level, pairs, curves, unit)
    else:
        allowed = limits(stated or "float32", name)
        index = first_excess(level, interval, allowed)
        limit = 2.0 ** np.append(allowed.first, level[1:-1] + allowed.later[1]) * curves.scale
    apart = curves.differences
    largest = int(np.argmax(apart))
    first = int(curves.steps[_first_difference(curves)])
    if index is None:
        most = f"by {_share(apart[largest])} at most, at step {curves.steps[largest]}{_resolution(curves)}"
        return Verdict(name, "rounding", first, f"differs by rounding from step {first}, {most}", curves, limit)
    start = int(curves.steps[index])
    verdict = Verdict(name, "fault", start, "", curves, limit)
    if factor := _find_factor(curves, index, 2.0 ** limits(stated or "float32", name).first):
        return replace(verdict, kind="factor", text=f"is {factor}{f', from step {start} on' if index else ''}")
    if k := _find_shift(old, new, start, curves):
        return replace(verdict, kind="shift", text=f"is from step {start} on that of {_ahead(k)}")
    jump = f"{_share(apart[index])} at step {start}, after {_share(2.0 ** level[index])} at most"
    if (
        not stated
        and not controls
        and level[index + 1] < math.log2(UNITS["bfloat16"]) + limits("bfloat16", name).early[1]
    ):
        reason = f"differs by {jump}: too much for float32, not for bfloat16; say which with --precision"
        return replace(verdict, kind="unknown", text=reason)
    if index == 0:
        text = f"differs by {_share(apart[0])} at the first step: other weights, other data or another formula"
        return replace(verdict, kind="data" if name == "loss" else "fault", text=text)
    return replace(verdict, text=f"drifts from step {start}: it differs by {jump}")


def _share(value: float) -> str:
    return f"{100 * value:.2g} %" if value >= 1e-3 else f"{value:.1e} of its value"


def _leave_envelope(
    level: Numbers, pairs: Sequence[Aligned], curves: Aligned, unit: float
) -> tuple[int | None, Numbers]:
    """Return the first index above the envelope of pairs of controls, None if it stays below, and the envelope."""
    table = []
    for pair in pairs:
        rows = np.searchsorted(pair.steps, curves.steps, side="right") - 1
        table.append(levels(pair, unit)[1:][np.maximum(rows, 0)])
    limit = envelope(table)
    above = np.flatnonzero(level[1:] > limit)
    return (int(above[0]) if len(above) else None), 2.0**limit * curves.scale


def _find_factor(curves: Aligned, index: int, tolerance: float) -> str:
    """Return a constant factor in words, "" for none.

    It is one if the ratios of the steps from `index` on spread far less than they are from 1, or if the first ratio of
    all is a named one.
    """
    old, new = (values[index : index + LONGEST_SHIFT] for values in (curves.old, curves.new))
    if np.any(old * new <= 0):
        return ""
    logs = np.log(new / old)
    middle, spread = float(np.median(logs)), float(np.median(np.abs(logs - np.median(logs))))
    steady = len(logs) > 3 and 10 * spread < abs(middle) > SMALLEST_FACTOR
    accuracy = max(tolerance, curves.quantum / float(np.abs(old).min()))
    center, width = (middle, max(accuracy, 3 * spread)) if steady else (float(logs[0]), accuracy)
    name = _name_factor(center, width)
    if not steady and (index or not name or accuracy > 2.0**-10):
        return ""
    residual = f" to within {_share(max(spread, accuracy))}" if steady else " at the first step"
    return f"{math.exp(center):.5g} times the old one{residual}{name and ': ' + name}"


def _name_factor(log_ratio: float, tolerance: float) -> str:
    counts = [(math.log(n), str(n)) for n in range(2, LARGEST_COUNT + 1)]
    roots = [(math.log(n) / 2, f"√{n}") for n in range(2, LARGEST_COUNT + 1) if math.isqrt(n) ** 2 != n]
    powers = [(k * math.log(2), f"2^{k}") for k in range(7, 33)]
    for value, text in [*counts, *powers, *roots]:
        if abs(abs(log_ratio) - value) < min(tolerance, 2.0**-7):
            inverse = "1/" if log_ratio < 0 else ""
            if text.startswith("2^"):
                return f"{inverse}{text}, as a loss scale that was left in"
            return f"{inverse}{text}, as {'the root of ' if '√' in text else ''}a number of micro-batches or ranks"
    return ""
