"""The outcomes of each family's tests with several ranks, and of all tests in other modes that are no defaults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from frameworks.adapter_file import adapter_file
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

FIRST = {"reference": "emulated", "torch": "eager", "jax": "jit", "tf": "graph"}
"""The mode that a run without a mode judges, where `adapter.toml` names none."""

FAMILIES = ("accumulation", "composition", "master", "recompute", "resume", "scaling", "sharding")


def has_ranks(record: Record) -> bool:
    """Whether a record is of a mode with ranks."""
    return record.series.mode in MODES.get(record.series.framework, ())


def blocks(records: Sequence[Record]) -> dict[str, str]:
    """The block "ranks", a table of tests by family, and "modes in short", a line each for ranks and other modes."""
    chosen = [record for record in records if has_ranks(record)]
    counts = [_counts(record) for record in chosen]
    names = [f"{record.series.framework} `{record.series.mode}`" for record in chosen]
    rows = [f"| family | {' | '.join(names)} |", f"|---{'|---' * len(names)}|"]
    rows += [f"| {family} | {' | '.join(_text(count[family]) for count in counts)} |" for family in FAMILIES]
    total = [sum((count[family] for family in FAMILIES), Counter()) for count in counts]
    short = "; ".join(f"{name} {_text(count)}" for name, count in zip(names, total, strict=True))
    others = [record for record in records if record.series.device_kind == "cpu" and _is_another_way(record)]
    of_modes = "; ".join(
        f"{record.series.framework} `{record.series.mode}` {_text(Counter(v.outcome for v in record.verdicts))}"
        for record in others
    )
    return {
        "ranks": "\n".join(rows),
        "modes in short": f"Tests of {', '.join(FAMILIES)} with two ranks: {short}.\n"
        f"All tests in other modes: {of_modes}.",
    }


def _is_another_way(record: Record) -> bool:
    """Whether a record is of a mode that `conformance run` judges where it is named: a library's, compiled, eager."""
    name, mode = record.series.framework, record.series.mode
    return not has_ranks(record) and mode not in (FIRST.get(name), *adapter_file(name).modes)


def _counts(record: Record) -> dict[str, Counter[Outcome]]:
    counts: dict[str, Counter[Outcome]] = {family: Counter() for family in FAMILIES}
    for verdict in record.verdicts:
        family = verdict.clause.partition(".")[0]
        if family in counts:
            counts[family][verdict.outcome] += 1
    return counts


def _text(count: Counter[Outcome]) -> str:
    return " · ".join(f"{count[outcome]} {outcome}" for outcome in Outcome if count[outcome])
