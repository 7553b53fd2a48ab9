"""Failures on a processor that no baseline has."""

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.runner import machine
from conformance.runner.baselines import foreign
from results.record.reading import write
from tests.support.small_record import BASE

SWITCHES = [
    ({"ATEN_CPU_CAPABILITY": "avx2"}, "avx2"),
    ({"ATEN_CPU_CAPABILITY": "default"}, "none"),
    ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, "avx2"),
    ({"XLA_FLAGS": "--xla_a=b --xla_cpu_max_isa=SSE4_2"}, "none"),
    ({"TF_ENABLE_ONEDNN_OPTS": "0"}, "avx2"),
    ({"TF_ENABLE_ONEDNN_OPTS": "1", "ATEN_CPU_CAPABILITY": "avx512"}, "avx512-vnni"),
]


@pytest.mark.parametrize(("variables", "level"), SWITCHES)
def test_switches_of_libraries_lower_the_level(tmp_path: Path, variables: dict[str, str], level: str) -> None:
    (tmp_path / "cpuinfo").write_text("flags : sse4_2 ssse3 avx avx2 fma f16c avx512f avx512_vnni amx_tile\n")
    assert machine.level(machine.instruction_sets(tmp_path / "cpuinfo", variables)) == level


@pytest.mark.parametrize(("sets", "told"), [(("avx2", "avx512f"), True), (("avx2", "fma"), False)])
def test_failure_says_that_no_baseline_has_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sets: tuple[str, ...], told: bool
) -> None:
    monkeypatch.setattr(machine, "instruction_sets", lambda: ("avx2",))
    variant = replace(BASE.variant, instruction_sets=sets)
    write(tmp_path / "torch-2-cpu-m.json.gz", replace(BASE, variant=variant))
    text = "on a processor that no baseline has (avx2; they have avx512): "
    assert foreign("torch", "m", "cpu", tmp_path) == (text if told else "")
    assert foreign("torch", "of-nobody", "cpu", tmp_path) == ""
