"""The cost of a run, in processor seconds over those of a yardstick."""

from pathlib import Path

import pytest

from conformance.runner import cost


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cost, "processor_model", lambda: "A")
    monkeypatch.setenv("CI", "true")
    path = tmp_path / "costs.toml"
    path.write_text('processor = "A"\n[quick]\ntorch = 100.0\n')
    return path


@pytest.mark.parametrize(
    ("framework", "spent", "over"), [("torch", 104.0, False), ("torch", 106.0, True), ("tf", 900.0, False)]
)
def test_cost_above_the_file_is_too_much(file: Path, framework: str, spent: float, over: bool) -> None:
    line, result = cost.judge(framework, "quick", spent, file)
    assert result is over
    assert line.startswith(f"cost: {spent:.0f} yardsticks of processor time")
    assert ("edit the file and say why" in line) is over


def test_cost_is_not_judged_on_another_processor_or_outside_of_ci(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(file.read_text().replace('"A"', '"B"'))
    assert cost.judge("torch", "quick", 900.0, file) == ("cost: 900 yardsticks of processor time", False)
    file.write_text(file.read_text().replace('"B"', '"A"'))
    monkeypatch.delenv("CI")
    assert not cost.judge("torch", "quick", 900.0, file)[1]


def test_committed_costs_can_be_read_and_the_yardstick_takes_time() -> None:
    _, costs = cost.limits()
    assert all(number > 0 for of_selection in costs.values() for number in of_selection.values())
    assert 0.001 < cost.Yardstick().stop() < 10
