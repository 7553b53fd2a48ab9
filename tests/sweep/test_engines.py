"""Engines: what they ask of Ray and submitit, lost cells, and one line where a library is missing."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from conformance.sweep.cells import SweepCell
from conformance.sweep.engines import CellEngine, NoEngine, slurm
from conformance.sweep.engines.local import LocalEngine
from conformance.sweep.engines.ray_cluster import RayEngine
from conformance.sweep.engines.slurm import SlurmEngine
from conformance.sweep.launching import CellProcesses, LostCell, judge_encoded
from conformance.sweep.plan import SweepPlan
from conformance.sweep.requests import CellRequest, CellResult
from frameworks.installer.resolution import Lock

CPU = CellRequest(SweepCell("x", "", "", "1"), None, "s-k-1", SweepPlan("x", ()))
GPU = CellRequest(SweepCell("x", "", "", "2", device="cuda"), None, "s-l-1", SweepPlan("x", ()))


def judged(content: bytes) -> bytes:
    """The result of a cell, whose reason is its version; version 2 is lost."""
    version = msgspec.json.decode(content, type=CellRequest).cell.version
    if version == "2":
        raise LostCell("the process\nended")
    return msgspec.json.encode(CellResult("judged", reason=version, record=b"\x00\xff"))


class FakeRayError(Exception):
    """What Ray raises of a task that was lost."""


class FakeRay(ModuleType):
    """Ray's functions that the engine calls; tasks run when they are awaited."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.exceptions = SimpleNamespace(RayError=FakeRayError)
        self.given: list[dict[str, Any]] = []
        self.started: dict[str, Any] = {}
        self.cancelled: list[object] = []
        self.ended = False
        self.gpus = 1.0

    def init(self, **options: Any) -> None:
        if options["address"] == "nowhere":
            raise ConnectionError("no cluster\nthere")
        self.started = options

    def remote(self, **options: Any) -> Callable[[Callable[[bytes], bytes]], Any]:
        self.given.append(options)

        def made(work: Callable[[bytes], bytes]) -> Any:
            def options_of(**chosen: Any) -> Any:
                self.given.append(chosen)
                return SimpleNamespace(remote=lambda content: (work, content))

            return SimpleNamespace(options=options_of)

        return made

    def nodes(self) -> list[dict[str, Any]]:
        small = {"Alive": True, "Resources": {"CPU": 8.0, "bench": 0.25}}
        dead = {"Alive": False, "Resources": {"CPU": 8.0, "GPU": 8.0, "bench": 8.0}}
        return [dead, small, {"Alive": True, "Resources": {"CPU": 2.0, "GPU": self.gpus, "bench": 1.0}}]

    def wait(self, tasks: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        assert timeout > 0
        return tasks[:num_returns], tasks[num_returns:]

    def get(self, task: Any) -> bytes:
        work, content = task
        try:
            return bytes(work(content))
        except LostCell as lost:
            raise FakeRayError(f"task failed\n{lost}") from lost

    def cancel(self, task: object, *, force: bool) -> None:
        assert force
        self.cancelled.append(task)

    def shutdown(self) -> None:
        self.ended = True


def answers(engine: CellEngine) -> dict[str, CellResult | str]:
    """The answers for two cells."""
    engine.submit("k", CPU)
    engine.submit("l", GPU)
    return dict([engine.next(), engine.next()])


def test_ray_queues_and_places_and_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    engine = RayEngine("127.0.0.1:1", 2, {"bench": 0.5}, judged)
    assert answers(engine) == {"k": CellResult("judged", "1", b"\x00\xff"), "l": "FakeRayError: ended"}
    task, cpu, gpu = ray.given
    assert task == {"max_retries": 0}
    assert cpu == {"num_cpus": 2, "num_gpus": 0, "resources": {"bench": 0.5}, "name": "k"}
    assert gpu["num_gpus"] == 1
    assert ray.started["address"] == "127.0.0.1:1"
    assert "runtime_env" not in ray.started
    engine.submit("k", CPU)
    engine.close()
    assert len(ray.cancelled) == 1
    assert ray.ended


def test_a_cell_that_fits_on_no_node_is_refused_unless_nodes_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay()
    ray.gpus = 0.0
    monkeypatch.setitem(sys.modules, "ray", ray)
    resources = {"bench": 0.5}
    engine = RayEngine("auto", 2, resources, judged)
    engine.submit("k", CPU)
    refused = "no node of the Ray cluster has CPU 2, GPU 1, bench 0.5: add one, or use --wait-for-nodes"
    with pytest.raises(NoEngine, match=re.escape(refused)):
        engine.submit("l", GPU)
    with pytest.raises(NoEngine, match="has CPU 3, bench"):
        RayEngine("auto", 3, resources, judged).submit("k", CPU)
    assert answers(RayEngine("auto", 2, resources, judged, wait_for_nodes=True))["l"] == "FakeRayError: ended"


def test_a_cluster_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    with pytest.raises(NoEngine, match=r"the Ray cluster nowhere does not answer \(no cluster there\)"):
        RayEngine("nowhere")


def test_a_library_that_is_missing_is_named_with_its_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(NoEngine, match="pip install ray"):
        RayEngine("auto")
    with pytest.raises(NoEngine, match="pip install submitit"):
        SlurmEngine(tmp_path, "s")


class RefusedError(Exception):
    """What submitit raises if sbatch refuses a job."""


class FakeSubmitit(ModuleType):
    """submitit with jobs that end when they are asked, but for those that Slurm refuses or loses."""

    def __init__(self, *, ends: bool = True) -> None:
        super().__init__("submitit")
        self.core = SimpleNamespace(utils=SimpleNamespace(FailedJobError=RefusedError))
        self.AutoExecutor = self.executor
        self.ends = ends
        self.given: list[dict[str, Any]] = []
        self.cancelled: list[bytes] = []

    def executor(self, **values: str) -> FakeSubmitit:
        self.given.append(values)
        return self

    def update_parameters(self, **values: Any) -> None:
        self.given.append(values)

    def submit(self, work: Callable[[bytes], bytes], content: bytes) -> Any:
        if self.given[-1].get("gpus_per_node") == 1 and not self.ends:
            raise RefusedError("sbatch: error: first\nsbatch: error: Invalid generic resource\n")

        def cancel(*, check: bool) -> None:
            assert not check
            self.cancelled.append(content)

        return SimpleNamespace(job_id=7, done=lambda: self.ends, result=lambda: work(content), cancel=cancel)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file with the lines of a `squeue` on the path; `scancel` writes its arguments next to it."""
    lines = tmp_path / "jobs"
    lines.write_text("")
    for name, script in {"squeue": f"cat {lines}", "scancel": f'echo "$@" > {tmp_path}/cancelled'}.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    return lines


def test_submitit_gets_a_job_for_each_cell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    submitit = FakeSubmitit()
    monkeypatch.setitem(sys.modules, "submitit", submitit)
    monkeypatch.setattr(slurm, "judge_encoded", judged)
    engine = SlurmEngine(tmp_path, "s", 2, {"partition": "cpu"})
    assert answers(engine) == {"k": CellResult("judged", "1", b"\x00\xff"), "l": "LostCell: the process ended"}
    given = submitit.given
    assert given[0] == {"folder": str(tmp_path), "cluster": "slurm"}
    assert given[1] == {"name": "conformance-s-k-1", "timeout_min": 91, "cpus_per_task": 2, "gpus_per_node": 0}
    assert given[2] == {"slurm_additional_parameters": {"partition": "cpu"}}
    assert given[3]["gpus_per_node"] == 1
    engine.submit("k", CPU)
    engine.close()
    assert submitit.cancelled == [msgspec.json.encode(CPU)]


def test_a_job_that_sbatch_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "submitit", FakeSubmitit(ends=False))
    with pytest.raises(NoEngine, match=r"^sbatch: error: Invalid generic resource; correct --workers or --reserve$"):
        SlurmEngine(tmp_path, "s").submit("l", GPU)


def test_a_job_that_left_the_queue_without_a_result_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jobs: Path
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", FakeSubmitit(ends=False))
    monkeypatch.setattr(slurm, "QUEUE_S", 0.0)
    monkeypatch.setattr(slurm, "POLL_S", 0.01)
    engine = SlurmEngine(tmp_path, "s")
    engine.submit("k", CPU)
    jobs.write_text("7 conformance-s-k-1\n")
    assert engine._without_result() == []
    jobs.write_text("")
    engine._without_result()
    assert engine._without_result() == ["k"]
    assert engine.next() == ("k", "job 7 left the queue without a result")
    engine.submit("k", CPU)
    (jobs.parent / "bin" / "squeue").write_text("#!/bin/sh\nexit 1\n")
    assert engine._without_result() == []


def test_jobs_of_a_killed_run_of_the_sweep_are_cancelled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jobs: Path
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", FakeSubmitit())
    jobs.write_text("3 conformance-s-k-1\n4 conformance-other-k-1\n5 conformance-s-l-2\n6 mine\n")
    SlurmEngine(tmp_path, "s")
    assert (tmp_path / "cancelled").read_text() == "3 5\n"


def test_cells_run_in_processes_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(_: CellProcesses, request: CellRequest) -> CellResult:
        if request.cell.version == "2":
            raise LostCell("killed")
        return CellResult("judged")

    monkeypatch.setattr(CellProcesses, "judge", judge)
    engine = LocalEngine(2)
    assert answers(engine) == {"k": CellResult("judged"), "l": "killed"}
    engine.close()


def test_a_cells_process_that_ends_without_a_result_is_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("CONFORMANCE_CACHE", "/dev/null")
    without_cache = msgspec.json.encode(replace(CPU, lock=Lock((), {})))
    with pytest.raises(LostCell, match=r"the cell's process ended with status 1 NotADirectoryError: "):
        judge_encoded(without_cache)
    assert not [*tmp_path.iterdir()]


def test_closed_processes_start_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    processes = CellProcesses()
    processes.close()
    with pytest.raises(LostCell, match="the sweep has ended"):
        processes.judge(CPU)
    assert not [*tmp_path.iterdir()]
