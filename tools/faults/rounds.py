"""Rounds of held-out faults, by rounds.toml: what the suites caught when they met them for the first time."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    made: list[Round] = []
    for row in tomllib.loads(path.read_text("utf-8"))["round"]:
        caught = {family: (count, of) for family, (count, of) in row.pop("caught").items()}
        missed = tuple(Missed(**each) for each in row.pop("missed", ()))
        made.append(Round(caught=caught, missed=missed, **row))
        count, of = _counts(made[-1:])
        if of - count != len(missed):
            raise ValueError(f"{path.name}: {made[-1].name}: got {len(missed)} missed faults, want {of - count}")
    return tuple(made)


def blocks() -> dict[str, str]:
    """The tables of every round, by family too, and of the faults that were missed."""
    met = rounds()
    lines = ["| round | faults | from real bugs | caught at first sight | by drawn programs |", "|---|---|---|---|---|"]
    missed = ["| round | fault | what is wrong | why it was missed |", "|---|---|---|---|"]
    for each in met:
        caught, of = _counts([each])
        share = f"{caught} of {of} ({100 * caught // of} %)"
        lines.append(f"| {each.name} | {of} | {each.from_real_bugs} | {share} | {each.by_drawn_programs} |")
        missed += [f"| {each.name} | {m.fault} | {m.wrong} | {m.reason} |" for m in each.missed]
    return {
        "scores": _scores(met),
        "rounds": "\n".join(lines),
        "rounds by family": _by_family(met),
        "missed faults": "\n".join(missed),
    }


def _by_family(met: Sequence[Round]) -> str:
    lines = [f"| family | caught in all rounds | in {met[-1].name} |", "|---|---|---|"]
    for family in sorted({family for each in met for family in each.caught}):
        counts = (_counts(chosen, family) for chosen in (met, met[-1:]))
        lines.append(f"| {family} | {' | '.join(f'{caught} of {of}' for caught, of in counts)} |")
    return "\n".join(lines)


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
