"""Rounds of held-out faults, by rounds.toml: what the suites caught when they met them for the first time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tools.docs.generate import table

FOLDER = Path(__file__).parent
MUTATION = FOLDER.parents[1] / "docs" / "mutation.md"
MAX_LISTED = 3
"""Rounds whose rate the README shows."""


@dataclass(frozen=True)
class Missed:
    """A fault that no test failed on.

    Attributes:
        fault: its name.
        wrong: what is wrong, in a sentence.
        reason: why it was missed.
    """

    fault: str
    wrong: str
    reason: str


@dataclass(frozen=True)
class Round:
    """What a round came to.

    Attributes:
        name: its date and a letter.
        from_real_bugs: how many of its faults were drawn from real bugs.
        by_drawn_programs: how many a law caught before any other test.
        caught: how many were caught, and of how many, by the family of the clause that their author named.
    """

    name: str
    from_real_bugs: int
    by_drawn_programs: int
    caught: Mapping[str, tuple[int, int]]
    missed: tuple[Missed, ...] = ()


def rounds(path: Path = FOLDER / "rounds.toml") -> tuple[Round, ...]:
    """Every round, the oldest first.

    Raises:
        ValueError: the count of missed faults is not that of faults that are not caught.
    """
    made = msgspec.toml.decode(path.read_bytes(), type=dict[str, tuple[Round, ...]])["round"]
    for each in made:
        count, of = _counts([each])
        if of - count != len(each.missed):
            raise ValueError(f"{path.name}: {each.name}: got {len(each.missed)} missed faults, want {of - count}")
    return made


def blocks() -> dict[str, str]:
    """The tables of every round, by family too, and of the faults that were missed."""
    met = rounds()
    rows = []
    for each in met:
        caught, of = _counts([each])
        share = f"{caught} of {of} ({100 * caught // of} %)"
        rows.append((each.name, str(of), str(each.from_real_bugs), share, str(each.by_drawn_programs)))
    families = [
        (family, *("{} of {}".format(*_counts(chosen, family)) for chosen in (met, met[-1:])))
        for family in sorted({family for each in met for family in each.caught})
    ]
    missed = [(each.name, m.fault, m.wrong, m.reason) for each in met for m in each.missed]
    return {
        "scores": _scores(met),
        "rounds": table(("round", "faults", "from real bugs", "caught at first sight", "by drawn programs"), rows),
        "rounds by family": table(("family", "caught in all rounds", f"in {met[-1].name}"), families),
        "missed faults": table(("round", "fault", "what is wrong", "why it was missed"), missed),
    }


def _scores(met: Sequence[Round]) -> str:
    """The regression gate, as docs/mutation.md has it, and the rate at first sight: of the last rounds, and of all."""
    gate = re.search(r"^score \d+ %: (\d+ of \d+) faults", MUTATION.read_text("utf-8"), re.MULTILINE)
    last = ", ".join("{} of {} ({})".format(*_counts([each]), each.name) for each in reversed(met[-MAX_LISTED:]))
    return (
        f"  regression gate {gate[1] if gate else 'not measured'} faults; at first sight {last},"
        f" and {'{} of {}'.format(*_counts(met))} faults in all {len(met)} rounds."
    )


def _counts(met: Sequence[Round], family: str = "") -> tuple[int, int]:
    """How many faults were caught, and of how many: of a family, of all without one."""
    chosen = [counts for each in met for name, counts in each.caught.items() if family in ("", name)]
    return sum(caught for caught, _ in chosen), sum(of for _, of in chosen)
