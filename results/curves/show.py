"""Shows the judgement of two training curves: as lines, Markdown, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from results.curves.judge import Judgement, Verdict
from results.curves.reading import Curve
from results.record.files import RecordError, one_line

POINTS = 2000
"""Largest number of points of a line in a picture."""
PANELS = 3
"""Largest number of series in a picture."""


def changed_versions(old: Curve, new: Curve) -> list[str]:
    """Return "torch 2.12.1 → 2.13.0" for each package whose versions differ."""
    return [
        f"{name} {old.versions[name]} → {new.versions[name]}"
        for name in sorted(old.versions.keys() & new.versions.keys())
        if old.versions[name] != new.versions[name]
    ]


def _rows(judgement: Judgement) -> list[tuple[str, str, str, str]]:
    return [(v.name, v.kind, "" if v.start is None else str(v.start), v.text) for v in judgement.verdicts]


def to_text(judgement: Judgement, old: Curve, new: Curve) -> str:
    """Return the sentence, one line for each series, and notes."""
    rows = _rows(judgement)
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    lines = [judgement.sentence, ""]
    lines += [f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d}" for a, b, c, d in rows]
    lines += [*judgement.notes, *changed_versions(old, new)]
    return "".join(one_line(line, 1000).rstrip() + "\n" for line in lines)


def to_markdown(judgement: Judgement, old: Curve, new: Curve) -> str:
    """Return the sentence, a table of series, and notes."""
    rows = ["| series | verdict | from step | |", "|---|---|---|---|"]
    rows += [
        "| " + " | ".join(one_line(cell, 1000).replace("|", "\\|") for cell in row) + " |" for row in _rows(judgement)
    ]
    notes = [f"- {one_line(note, 1000)}" for note in (*judgement.notes, *changed_versions(old, new))]
    parts = [f"**{one_line(judgement.sentence, 1000)}**", "\n".join(rows), "\n".join(notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def draw(judgement: Judgement, path: Path) -> None:
    """Write a picture, SVG or PNG by its suffix: for each series both curves, and their difference with its limit.

    Raises:
        RecordError: matplotlib is missing, or does not write this format.
    """
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        raise RecordError(path, "a picture needs matplotlib", "pip install matplotlib") from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    verdicts = [v for v in judgement.verdicts if v.curves is not None and len(v.curves.steps)][:PANELS]
    if not verdicts:
        raise RecordError(path, "has nothing to show", "compare runs that have a series in common")
    figure, axes = plt.subplots(2 * len(verdicts), 1, figsize=(8, 4 * len(verdicts)), sharex=True, squeeze=False)
    for index, verdict in enumerate(verdicts):
        _draw_series(axes[2 * index : 2 * index + 2, 0], verdict)
    axes[-1, 0].set_xlabel("step")
    figure.suptitle(one_line(judgement.sentence, 160), fontsize=8, wrap=True)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise RecordError(path, f"cannot be written ({error})", "name a file .svg or .png") from None
    finally:
        plt.close(figure)


def _draw_series(axes: Sequence[Any], verdict: Verdict) -> None:
    curves = verdict.curves
    assert curves is not None
    upper, lower = axes
    every = slice(None, None, max(1, len(curves.steps) // POINTS))
    steps = curves.steps[every]
    upper.plot(steps, curves.old[every], label="old")
    upper.plot(steps, curves.new[every], "--", label="new")
    upper.set_ylabel(verdict.name)
    upper.legend()
    lower.plot(steps, np.maximum(np.abs(curves.new - curves.old)[every], 1e-300), ".", label="difference")
    if verdict.limit is not None:
        lower.plot(steps, verdict.limit[every], label="explained by rounding")
    positive = np.abs(curves.new - curves.old)[every]
    if np.any(positive > 0):
        lower.set_yscale("log")
        lower.set_ylim(bottom=float(positive[positive > 0].min()) / 4)
    lower.legend()
    for part in axes:
        if verdict.worse and verdict.start is not None:
            part.axvline(verdict.start, color="red", linewidth=0.8)
