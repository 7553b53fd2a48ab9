"""The switches that make this processor stand for others."""

from pathlib import Path

import pytest

from conformance.runner import machine
from tools.processors import LEVELS, environment, levels


@pytest.mark.parametrize("level", sorted(LEVELS.keys() - {"as it is"}))
@pytest.mark.parametrize("framework", ["torch", "tf", "jax"])
def test_record_of_a_level_names_its_instruction_sets(level: str, framework: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("flags : sse4_2 avx avx2 fma avx512f avx512_vnni\n")
    assert machine.level(machine.instruction_sets(tmp_path / "cpuinfo", environment(level, framework))) == level


def test_switches_join_the_flags_that_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=b")
    assert environment("avx2", "jax")["XLA_FLAGS"] == "--xla_a=b --xla_cpu_max_isa=AVX2"
    assert "ONEDNN_MAX_CPU_ISA" not in environment("avx2", "torch")


def test_levels_of_a_framework_without_a_switch_are_the_processor_alone() -> None:
    assert levels("paddle", ["avx2"]) == levels("paddle", ()) == ["as it is"]
    assert levels("torch", ()) == [*LEVELS]
    assert levels("torch", ["avx2"]) == ["avx2"]
