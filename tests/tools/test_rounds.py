"""Rounds of held-out faults: the tables are made of rounds.toml, whose counts have to agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.faults.rounds import Round, blocks, rounds

ROW = """
[[round]]
name = "2026-01-01-a"
from_real_bugs = 1
by_drawn_programs = 1
caught = { resume = [1, 1], scaling = [0, 1] }
"""
MISSED = """
[[round.missed]]
fault = "Broken"
wrong = "It is."
reason = "nothing like it was drawn"
"""


def test_every_round_is_told() -> None:
    met = rounds()
    assert [met[0].name, met[-1].name, len(met)] == ["2026-11-22-a", "2026-11-25-s", 17]
    made = blocks()
    assert "and 435 of 536 faults in all 17 rounds" in made["scores"]
    assert len(made["missed faults"].splitlines()) == 2 + 101
    assert len(made["rounds"].splitlines()) == 2 + 17


def test_a_round_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rounds.toml"
    path.write_text(ROW + MISSED, "utf-8")
    (row,) = rounds(path)
    assert isinstance(row, Round)
    assert row.caught == {"resume": (1, 1), "scaling": (0, 1)}
    assert [missed.fault for missed in row.missed] == ["Broken"]


def test_a_round_whose_counts_disagree_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rounds.toml"
    path.write_text(ROW, "utf-8")
    with pytest.raises(ValueError, match=r"rounds\.toml: 2026-01-01-a: got 0 missed faults, want 1"):
        rounds(path)
