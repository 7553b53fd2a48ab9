"""Cells of a plan: combinations, the framework of a companion's time, and what the index says cannot be judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.tags import sys_tags
from packaging.version import Version

from conformance.runner.adapter_info import check_mode
from conformance.sweep.cell_locks import environment_of
from conformance.sweep.cells import SweepCell, cells_of, extremes, newest_at
from conformance.sweep.index import IndexSettings, PackageIndex, Release, ReleaseFile
from conformance.sweep.known_names import check_device
from conformance.sweep.plan import read_plan
from frameworks.installer.resolution import EnvironmentRequest
from frameworks.registry import UnknownFramework
from results.record.files import RecordError
from tools.benchmarks.sweeps.wheels import TOY

HERE = frozenset(sys_tags())
DATES = {
    "tensorflow-cpu": {"2.16.1": "2024-03-08", "2.17.0": "2024-07-11", "2.18.0": "2024-10-24", "2.21.0": "2026-03-01"},
    "keras": {"3.3.3": "2024-04-26", "3.4.1": "2024-06-26", "3.5.0": "2024-08-12", "3.15.1": "2026-07-29"},
    "jax": {"0.4.30": "2024-06-18", "0.4.32": "2024-09-11", "0.9.2": "2026-03-18", "0.12.0": "2026-10-19"},
}


def release(version: str, day: str) -> Release:
    """A release of one wheel: jax 0.12 is for another Python, and 0.4.32 is yanked."""
    python, yanked = (">=9" if version == "0.12.0" else ""), version == "0.4.32"
    return Release((ReleaseFile(1, f"{day}T00:00:00Z", python, yanked, HERE),))


@pytest.fixture
def index() -> PackageIndex:
    """An index with the packages of `DATES`."""
    known = {name: {Version(each): release(each, day) for each, day in dates.items()} for name, dates in DATES.items()}
    return PackageIndex(IndexSettings(()), known)


JAX = 'framework = "jax"\nversions = ["0.9.2"]\n'


def cells(folder: Path, index: PackageIndex, text: str) -> tuple[SweepCell, ...]:
    """The cells of a plan of one table."""
    (folder / "plan.toml").write_text(f"[[cells]]\n{text}", encoding="utf-8")
    return cells_of(read_plan(folder / "plan.toml"), index)


def test_cells_are_the_combinations_of_a_table(tmp_path: Path, index: PackageIndex) -> None:
    result = cells(
        tmp_path,
        index,
        """framework = "jax"
        versions = ["0.4.30", "0.9.2", "0.9.2"]
        companions = [{ flax = "0.8.0" }, {}]
        modes = ["jit"]
        ways = [[], ["clip.stateless", "optimizer.chain"]]
        devices = ["cpu", "cuda"]""",
    )
    assert len(result) == len({cell.key for cell in result}) == len({cell.name for cell in result}) == 2 * 2 * 2 * 2
    assert result[0].name == "jax-0.4.30+flax.0.8.0-cpu-jit"
    assert result[0].released == "2024-06-18"
    assert result[-1].name == "jax-0.9.2-cuda-jit+clip.stateless+optimizer.chain"


def test_the_modes_are_those_of_the_adapter(tmp_path: Path, index: PackageIndex) -> None:
    result = cells(tmp_path, index, 'framework = "jax"\nversions = ["0.9.2"]')
    assert [cell.mode for cell in result] == [""]
    with pytest.raises(RecordError, match=r"plan\.toml: cells\[0\]: paddle: releases of paddlepaddle cannot be listed"):
        cells(tmp_path, index, 'framework = "paddle"\nversions = ["3.3.1"]')


def test_the_index_says_what_cannot_be_judged(tmp_path: Path, index: PackageIndex) -> None:
    result = cells(tmp_path, index, 'framework = "jax"\nversions = ["0.4.32", ">=0.4.30", "0.7"]')
    assert [(cell.version, cell.outcome) for cell in result] == [
        ("0.4.30", ""),
        ("0.4.32", "yanked"),
        ("0.7", "no solution"),
        ("0.9.2", ""),
        ("0.12.0", "no wheel"),
    ]
    assert result[1].reason == "jax 0.4.32 was withdrawn"
    assert result[2].reason == "no index has jax 0.7"
    assert result[4].reason.startswith("jax 0.12.0 wants Python >=9, and this is 3.")


def test_a_companion_varies_on_a_framework_that_is_fixed_or_of_its_time(tmp_path: Path, index: PackageIndex) -> None:
    table = 'framework = "tf"\npackage = "keras"\nversions = ["minor >=3.3"]\nmodes = ["graph"]\n'
    pinned = cells(tmp_path, index, table)
    assert pinned[0].name == "tf-2.21.0+keras.3.3.3-cpu-graph"
    fixed = cells(tmp_path, index, f'{table}framework-version = "2.18.0"')
    assert {cell.framework_version for cell in fixed} == {"2.18.0"}
    assert {cell.packages["keras"] for cell in fixed} == {*DATES["keras"]}
    past = cells(tmp_path, index, f'{table}framework-version = "of its time"')
    assert [cell.framework_version for cell in past] == ["2.16.1", "2.16.1", "2.17.0", "2.21.0"]
    assert newest_at(index.releases("tensorflow-cpu"), "2024-03-07") == ""
    wanted = EnvironmentRequest("tf", "2.16.1", "graph", {"keras": "3.3.3"}, gpu=None, varying="keras")
    assert environment_of(past[0]) == wanted


def test_extremes_are_the_oldest_and_the_newest_that_can_be_judged(tmp_path: Path, index: PackageIndex) -> None:
    result = cells(tmp_path, index, 'framework = "jax"\nversions = [">=0.4", "0.4.32"]\nmodes = ["jit", "nojit"]')
    assert [(cell.version, cell.mode) for cell in extremes(result)] == [
        ("0.4.30", "jit"),
        ("0.4.30", "nojit"),
        ("0.9.2", "jit"),
        ("0.9.2", "nojit"),
    ]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('framework = "reference"\nversions = ["2"]', "nothing is installed for it"),
        ('framework = "jax"\nversions = [">=5"]', "'>=5' fits no release; correct the plan$"),
        ('framework = "jaxx"\nversions = ["1"]', "unknown framework 'jaxx': one of "),
        ('framework = "nosuch.mod:Cls"\nversions = ["1"]', "no module nosuch.mod can be imported from here"),
        (f'{JAX}modes = ["jitt"]', "jax: got mode 'jitt', want a mode of jax, such as jit, nojit"),
        (f'{JAX}devices = ["cpuu"]', "jax: got device 'cpuu', want cpu, auto or an accelerator: cuda, "),
        ('framework = "reference"\nversions = ["1"]\ndevices = ["cuda"]', "want cpu or auto: reference has no other"),
        (f'{JAX}ways = [["clip.foo"]]', "jax: got way 'clip.foo', want one that `conformance ways jax` lists"),
        (
            f'{JAX}modes = ["nojit"]\nways = [["clip.stateless"]]',
            "way 'clip.stateless' in mode 'nojit', want it in jit",
        ),
        (f'{JAX}ways = [["clip.stateless", "clip.named-chain"]]', "want at most one of each technique"),
        ('framework = "reference"\nversions = ["1"]\nmodes = ["eager"]', "want a mode of reference, such as emulated"),
        (f'{JAX}companions = [{{ jax = "0.4.30" }}]', "got jax as a companion, and it is the package that varies"),
        (
            'framework = "tf"\npackage = "keras"\nversions = ["3.3.3"]\ncompanions = [{ tensorflow = "2.16.1" }]',
            "got tensorflow as a companion, want its version as the framework's",
        ),
    ],
)
def test_a_table_without_cells_is_refused(tmp_path: Path, index: PackageIndex, table: str, problem: str) -> None:
    with pytest.raises(RecordError, match=rf"plan\.toml: cells\[0\]: .*{problem}"):
        cells(tmp_path, index, table)


@pytest.mark.parametrize(
    ("framework", "modes"),
    [
        ("reference", ["emulated", "ranks", "offload"]),
        ("tf", ["graph", "eager", "xla", "rewrite", "mirrored", "tflite"]),
        ("paddle", ["dygraph", "static", "data-parallel"]),
        ("torch", ["eager", "compile", "ddp", "fsdp", "trainer-plain", "torchao", "fabric"]),
        (TOY, ["of-its-own"]),
    ],
)
def test_modes_that_an_adapter_has_are_not_refused(framework: str, modes: list[str]) -> None:
    for mode in ["", *modes]:
        check_mode(framework, mode)


def test_an_adapter_is_asked_about_a_mode_that_no_file_names() -> None:
    with pytest.raises(ValueError, match="got mode 'master', want a mode of reference, such as emulated, ranks, offl"):
        check_mode("reference", "master")
    with pytest.raises(UnknownFramework, match="conformance_toy"):
        check_mode(TOY, "of-its-own", loadable=True)


@pytest.mark.parametrize(
    ("framework", "device"), [("jax", "METAL"), ("torch", "mtia"), (TOY, "x"), ("reference", "auto")]
)
def test_devices_that_a_framework_may_have_are_not_refused(framework: str, device: str) -> None:
    check_device(framework, device)
