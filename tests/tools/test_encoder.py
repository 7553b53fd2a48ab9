"""The sentence encoder in eight bits: its table is made of the committed figures, and what is missing is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tools.benchmarks.encoder import __main__ as command
from tools.benchmarks.encoder.samples import STORE, blocks

FIGURES = STORE.load("torch")


def test_the_table_has_a_row_for_each_side() -> None:
    (block,) = blocks().values()
    rows = [line for line in block.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows[1:]] == [side.side for side in FIGURES.sides]
    whole, eight_bits, _ = FIGURES.sides
    assert rows[2].split(" | ")[2] == f"{eight_bits.model_bytes / whole.model_bytes:.3f}"


def test_a_quarter_of_the_linear_layers_is_left() -> None:
    whole, *others = FIGURES.sides
    assert all(0.25 < side.linear_bytes / whole.linear_bytes < 0.26 for side in others)


def test_outliers_in_floating_point_are_to_bring_it_nearer() -> None:
    whole, with_outliers, without = FIGURES.sides
    assert not command.problems(FIGURES)
    far = replace(with_outliers, mean_cosine=without.mean_cosine - 1e-4)
    (line,) = command.problems(replace(FIGURES, sides=(whole, far, without)))
    assert line.startswith(with_outliers.side)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    from tools.benchmarks.encoder import measuring

    monkeypatch.setattr(measuring, "not_installed", lambda: "bitsandbytes: not installed: pip install bitsandbytes")
    assert command.main(["torch"]) == 2
    assert capsys.readouterr().err == "bitsandbytes: not installed: pip install bitsandbytes\n"
