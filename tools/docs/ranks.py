"""The outcomes of each family's tests with several ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from results.record.outcomes import Outcome
from results.record.reading import Record

MODES = {
    "reference": ("ranks",),
    "torch": ("ddp", "fsdp", "fsdp1", "deepspeed"),
    "jax": ("sharded",),
    "tf": ("mirrored",),
    "paddle": ("data-parallel",),
}
"""The modes in which every recipe is trained by two ranks, by framework."""

FAMILIES = ("accumulation", "composition", "master", "recompute", "resume", "scaling", "sharding")


def has_ranks(record: Record) -> bool:
    """Whether a record is of a mode with ranks."""
    return record.series.mode in MODES.get(record.series.framework, ())


def blocks(records: Sequence[Record]) -> dict[str, str]:
    """The block "ranks", a table of tests by family."""
    chosen = [record for record in records if has_ranks(record)]
    counts = [_counts(record) for record in chosen]
    names = [f"{record.series.framework} `{record.series.mode}`" for record in chosen]
    rows = [f"| family | {' | '.join(names)} |", f"|---{'|---' * len(names)}|"]
    rows += [f"| {family} | {' | '.join(_text(count[family]) for count in counts)} |" for family in FAMILIES]
    return {"ranks": "\n".join(rows)}


def _counts(record: Record) -> dict[str, Counter[Outcome]]:
    counts: dict[str, Counter[Outcome]] = {family: Counter() for family in FAMILIES}
    for verdict in record.verdicts:
        family = verdict.clause.partition(".")[0]
        if family in counts:
            counts[family][verdict.outcome] += 1
    return counts


def _text(count: Counter[Outcome]) -> str:
    return " · ".join(f"{count[outcome]} {outcome}" for outcome in Outcome if count[outcome])
