"""The porting table: every observed value of every run, and differences between frameworks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from results.record.reading import Record
from results.record.values import Json
from results.report.runs import judged
from results.report.text import NAME, clean, described
from results.show.observations import Place, differ, leaves

FORMATS = "autocast.op-dtypes"
"""The clause whose observations are formats by operation."""

_RULES = re.compile(r"scaling\.paper-defaults|.+-rule")


def groups(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The porting table of these records: lines of one kind, those that differ first; `folded` hides them at first."""
    by_place: dict[Place, list[Json | None]] = {}
    present: set[tuple[Place, int]] = set()
    for run, record in enumerate(records):
        for place, value in leaves(record):
            by_place.setdefault(place, [None] * len(records))[run] = value
            present.add((place, run))
    sorted_lines: dict[str, list[dict[str, Any]]] = {"rules": [], "differ": [], "formats": [], "same": []}
    for place in sorted(by_place):
        here = [(place, run) in present for run in range(len(records))]
        line = _line(place, by_place[place], here, records)
        if _RULES.fullmatch(place[0]):
            kind = "rules"
        elif place[0] == FORMATS:
            kind = "formats"
        else:
            kind = "differ" if line["differs"] else "same"
        sorted_lines[kind].append(line)
    named = (
        ("Defaults and rules", "rules", False),
        ("Other observations that differ between frameworks", "differ", False),
        ("Formats of operations under autocast", "formats", True),
        ("The same in every framework, or an explanation in words", "same", True),
    )
    return [
        {
            "title": title,
            "lines": sorted(sorted_lines[kind], key=lambda line: not line["differs"]),
            "differing": sum(line["differs"] for line in sorted_lines[kind]),
            "folded": folded,
        }
        for title, kind, folded in named
        if sorted_lines[kind]
    ]


def _line(place: Place, values: Sequence[Json], present: Sequence[bool], records: Sequence[Record]) -> dict[str, Any]:
    """One observed value across the runs; None where a run has none."""
    clause, key, case, way = place
    frameworks = judged(records)
    compared = [
        (record.series.framework, value)
        for value, here, record in zip(values, present, records, strict=True)
        if here and record.series.framework in frameworks
    ]
    return {
        "clause": clean(clause),
        "name": " › ".join(clean(part) for part in (key, *way) if part),
        "case": "" if case == key else clean(case),
        "cells": [
            (described(value, NAME) or "empty text") if here else None
            for value, here in zip(values, present, strict=True)
        ],
        "differs": differ(place, compared),
    }
