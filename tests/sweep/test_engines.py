"""Engines: a pool of this machine, what they ask of Ray and submitit, and one line for what cannot be used."""

import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from conformance.sweep import cell as module
from conformance.sweep.cell import (
    CellEngine,
    CellRequest,
    CellResult,
    Commands,
    LocalEngine,
    LostCell,
    NoEngine,
    RayEngine,
    SlurmEngine,
)
from conformance.sweep.plan import SweepCell, SweepPlan
from tests.support.suite_runs import ROOT, hang_limit, running, wait_for

CPU = CellRequest(SweepCell("reference", "", "", "1"), SweepPlan("x", ()))
GPU = CellRequest(SweepCell("reference", "", "", "2", device="cuda"), SweepPlan("x", ()))

TWO_CELLS = """
[[cells]]
framework = "reference"
versions = ["1"]
modes = ["emulated", "ranks"]
"""
SWEEPING = """
import sys
from pathlib import Path
from conformance.cli import main
from conformance.sweep import engines
from conformance.sweep.cell import CellResult

def judge(request, commands):
    program = "import sys; open(sys.argv[1], 'a').write('begun '); import time; time.sleep(600)"
    log = Path(sys.argv[1] + request.cell.mode)
    commands.run([sys.executable, "-c", program, sys.argv[1]], log, 600, {})
    return CellResult("judged")

engines.LocalEngine.__init__.__defaults__ = (judge,)
sys.exit(main(["sweep", *sys.argv[2:]]))
"""
"""A sweep whose cells note that they begin, and do not end."""


def judge(request: CellRequest, _: Commands | None = None) -> CellResult:
    """Judge version 1; version 2 is lost."""
    if request.cell.version == "2":
        raise LostCell("the process\nended")
    return CellResult("judged", record=b"\x00\xff")


def answers(engine: CellEngine) -> dict[str, CellResult | str]:
    """The answers for two cells, by version."""
    engine.submit(CPU)
    engine.submit(GPU)
    return {request.cell.version: result for request, result in (engine.next(), engine.next())}


def test_local_engine_runs_cells_here() -> None:
    engine = LocalEngine(2, judge)
    assert answers(engine) == {"1": judge(CPU), "2": "LostCell: the process ended"}
    engine.close()


@pytest.mark.parametrize("several", [False, True])
def test_sweep_interrupted_ends_its_cells_and_starts_no_other(tmp_path: Path, several: bool) -> None:
    plan, cells, log = tmp_path / "plan.toml", tmp_path / "cells", tmp_path / "log"
    plan.write_text(TWO_CELLS, "utf-8")
    argv = [sys.executable, "-c", SWEEPING, str(cells), str(plan), "--output", str(tmp_path / "sweep")]
    with running(argv, ROOT, log) as process:
        wait_for(lambda: cells.exists() and cells.read_text("utf-8") != "")
        for number in [signal.SIGINT, signal.SIGINT, signal.SIGTERM] if several else [signal.SIGINT]:
            process.send_signal(number)
        assert process.wait(hang_limit()) == 2, log.read_text("utf-8")
    assert (cells.read_text("utf-8"), log.read_text("utf-8")) == ("begun ", "\nconformance: interrupted\n")


class FakeRayError(Exception):
    """What Ray raises of a task that was lost."""


class FakeRay(ModuleType):
    """Ray's functions that the engine calls; tasks run when they are awaited."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.exceptions = SimpleNamespace(RayError=FakeRayError)
        self.options: list[dict[str, Any]] = []
        self.address = ""
        self.cancelled: list[object] = []
        self.ended = False

    def init(self, *, address: str, **_: Any) -> None:
        if address == "nowhere":
            raise ConnectionError("no cluster\nthere")
        self.address = address

    def remote(self, **options: Any) -> Callable[[Callable[[CellRequest], CellResult]], Any]:
        self.options.append(options)

        def task(run: Callable[[CellRequest], CellResult]) -> Any:
            def with_options(**more: Any) -> Any:
                self.options.append(more)
                return SimpleNamespace(remote=lambda request: (run, request.cell.version))

            return SimpleNamespace(options=with_options)

        return task

    def nodes(self) -> list[dict[str, Any]]:
        small = {"Alive": True, "Resources": {"CPU": 8.0, "bench": 1.0}}
        return [small, {"Alive": False, "Resources": {"CPU": 8.0, "GPU": 8.0, "bench": 8.0}}]

    def wait(self, tasks: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        assert timeout > 0
        return tasks[:num_returns], tasks[num_returns:]

    def get(self, task: Any) -> CellResult:
        run, version = task
        try:
            result: CellResult = run(CPU if version == "1" else GPU)
        except LostCell as lost:
            raise FakeRayError(f"task failed\n{lost}") from lost
        return result

    def cancel(self, task: object, *, force: bool) -> None:
        assert force
        self.cancelled.append(task)

    def shutdown(self) -> None:
        self.ended = True


def test_ray_engine_queues_and_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    engine = RayEngine("127.0.0.1:1", {"bench": 0.5}, judge)
    assert answers(engine) == {"1": judge(CPU), "2": "FakeRayError: ended"}
    task, cpu, gpu = ray.options
    assert task == {"max_retries": 0}
    assert cpu == {"num_cpus": 2, "num_gpus": 0, "resources": {"bench": 0.5}, "name": CPU.cell.name}
    assert gpu["num_gpus"] == 1
    assert capsys.readouterr().err == f"{GPU.cell.name} waits for a node that has CPU 2, GPU 1, bench 0.5\n"
    engine.submit(CPU)
    engine.close()
    assert len(ray.cancelled) == 1
    assert ray.ended


def test_engine_that_cannot_be_used_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    with pytest.raises(NoEngine, match=re.escape("does not answer (no cluster there); start it, or set RAY_ADDRESS")):
        RayEngine("nowhere")
    for name, start in (("ray", RayEngine), ("submitit", lambda: SlurmEngine(tmp_path, "s"))):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(NoEngine, match=f"{name} is not installed: pip install {name}"):
            start()


class RefusedError(Exception):
    """What submitit raises if sbatch refuses a job."""


class FakeSubmitit(ModuleType):
    """submitit with jobs that have ended when they are asked, but for those with GPUs, where Slurm has none."""

    def __init__(self, *, gpus: bool = True) -> None:
        super().__init__("submitit")
        self.core = SimpleNamespace(utils=SimpleNamespace(FailedJobError=RefusedError))
        self.AutoExecutor = self.executor
        self.gpus = gpus
        self.parameters: list[dict[str, Any]] = []
        self.cancelled: list[CellRequest] = []

    def executor(self, **values: str) -> "FakeSubmitit":
        self.parameters.append(values)
        return self

    def update_parameters(self, **values: Any) -> None:
        self.parameters.append(values)

    def submit(self, run: Callable[[CellRequest], CellResult], request: CellRequest) -> Any:
        if self.parameters[-1]["gpus_per_node"] and not self.gpus:
            raise RefusedError("sbatch: error: first\nsbatch: error: Invalid generic resource\n")

        def cancel(*, check: bool) -> None:
            assert not check
            self.cancelled.append(request)

        return SimpleNamespace(done=lambda: True, result=lambda: run(request), cancel=cancel)


@pytest.fixture
def scancel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file to which `scancel` writes its arguments."""
    program = tmp_path / "bin" / "scancel"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/cancelled\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    return tmp_path / "cancelled"


def test_slurm_engine_submits_a_job_for_each_cell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scancel: Path
) -> None:
    submitit = FakeSubmitit()
    monkeypatch.setitem(sys.modules, "submitit", submitit)
    monkeypatch.setattr(module, "run_cell", judge)
    engine = SlurmEngine(tmp_path, "sweep", {"partition": "cpu"})
    assert scancel.read_text() == "--me --name=sweep\n"
    assert answers(engine) == {"1": judge(CPU), "2": "LostCell: the process ended"}
    folder, cpu, gpu = submitit.parameters
    assert folder == {"folder": str(tmp_path), "cluster": "slurm"}
    options = {"slurm_additional_parameters": {"partition": "cpu"}}
    assert cpu == {"name": "sweep", "timeout_min": 91, "cpus_per_task": 2, "gpus_per_node": 0, **options}
    assert gpu["gpus_per_node"] == 1
    engine.submit(CPU)
    engine.close()
    assert submitit.cancelled == [CPU]


@pytest.mark.usefixtures("scancel")
def test_slurm_engine_refused_job_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "submitit", FakeSubmitit(gpus=False))
    with pytest.raises(NoEngine, match=r"^sbatch: error: Invalid generic resource; correct --reserve, or `workers`"):
        SlurmEngine(tmp_path, "s").submit(GPU)
