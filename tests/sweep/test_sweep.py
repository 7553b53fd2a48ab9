"""Cells of sweeps, and the engines that run them."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call

import pytest

from conformance.sweep import cell as module
from conformance.sweep.cell import (
    CellEngine,
    CellFolder,
    CellRequest,
    CellResult,
    CommandEnd,
    Commands,
    LocalEngine,
    LostCell,
    NoEngine,
    NotJudged,
    RayEngine,
    Requirements,
    SlurmEngine,
    Sweep,
    load_finished,
    make_environment,
    run_cell,
)
from conformance.sweep.plan import SweepCell, SweepPlan
from results.record.files import compress_content
from results.record.model import Outcome
from results.record.reading import Journal, from_json, load, to_json
from tests.support.recorded import fill_journal, header
from tests.support.suite_runs import ROOT, hang_limit, running, wait_for
from tests.support.wheels import PACKAGE, TOY, only_index, write_wheel

PLAN = SweepPlan(
    "toy", (), ("-k", "test_skipped_update_keeps_average or test_overflow_can_be_discarded"), workers=1, repeat=False
)
SKIP = "scaling.skip-is-atomic"
SLEEPER = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
REQUIREMENTS = Requirements(("torch==2.6.0",), ("https://x",), "2026-01-01T00:00:00Z", ("numpy",))
LOCAL_PLAN = SweepPlan("toys", (), ("-k", "scaling"))
CELLS = tuple(
    SweepCell(TOY, version, PACKAGE, version, f"2026-01-0{version[0]}", mode=mode)
    for version in ("1.0", "2.0", "3.0")
    for mode in ("emulated", "ranks")
)
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
from conformance.sweep.cell import CellResult, LocalEngine

def judge(request, commands):
    program = "import sys; open(sys.argv[1], 'a').write('begun '); import time; time.sleep(600)"
    log = Path(sys.argv[1] + request.cell.mode)
    commands.run([sys.executable, "-c", program, sys.argv[1]], log, 600, {})
    return CellResult("judged")

LocalEngine.__init__.__defaults__ = (judge,)
sys.exit(main(["sweep", *sys.argv[2:]]))
"""
"""A sweep whose cells note that they begin, and do not end."""


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Wheels of the toy, the only index; 4.0 has a fault, and 7.0 cannot be imported."""
    write_wheel(tmp_path / "wheels", PACKAGE, "7.0", source="raise ImportError('cannot load /opt/x/libtoy.so')")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with only_index(tmp_path / "wheels", "4.0"):
        yield tmp_path / "wheels"


class Unconstrained(Commands):
    """Commands whose environments for installations under constraints cannot be made."""

    count = 0

    def run(self, argv: Sequence[str], *arguments: Any) -> CommandEnd:
        self.count += "venv" in argv
        return CommandEnd(1, "") if "venv" in argv and self.count % 2 else super().run(argv, *arguments)


def cell(version: str) -> SweepCell:
    """A cell of the toy."""
    return SweepCell(TOY, version, PACKAGE, version, "2026-01-01", mode="emulated")


def request(version: str) -> CellRequest:
    """The request to judge a cell of the toy."""
    return CellRequest(cell(version), PLAN, path=str(ROOT))


def test_run_cell_of_a_wheel_gives_the_record_of_its_version(wheels: Path, tmp_path: Path) -> None:
    result = run_cell(request("4.0"))
    assert (result.outcome, result.reason) == ("judged", "")
    record = from_json(gzip.decompress(result.record))
    assert (record.variant.framework_version, record.variant.packages[PACKAGE]) == ("4.0", "4.0")
    assert (record.status, record.selection, len(record.verdicts)) == ("partial", " ".join(PLAN.selection), 4)
    assert {verdict.outcome for verdict in record.verdicts if verdict.clause == SKIP} == {Outcome.FAIL}
    folder = CellFolder(tmp_path / "sweep", PLAN)
    folder.store(cell("4.0"), result)
    assert folder.is_done(cell("4.0"))
    path = folder.record(cell("4.0"))
    assert load_finished(path, SweepPlan("toy", (), ("-k", "other"))) is None
    assert load_finished(path, SweepPlan("toy", (), PLAN.selection, seed=1)) is None
    path.write_bytes(path.read_bytes()[:100])
    assert not folder.is_done(cell("4.0"))
    assert [*(wheels.parent / "tmp").iterdir()] == []


@pytest.mark.parametrize(
    ("version", "outcome", "reason"),
    [
        ("7.0", "import failed", "ImportError: cannot load <path>"),
        ("8.0", "no solution", f"No matching distribution found for {PACKAGE}==8.0"),
    ],
)
@pytest.mark.usefixtures("wheels")
def test_run_cell_of_a_broken_version_has_a_reason(version: str, outcome: str, reason: str) -> None:
    result = run_cell(request(version), Unconstrained())
    assert (result.outcome, result.record) == (outcome, b"")
    assert reason in result.reason
    assert result.log


@pytest.mark.parametrize(
    ("end", "outcome", "reason"),
    [
        (CommandEnd(None, "..."), "out of time", "the suite took more than 1800 s"),
        (CommandEnd(-signal.SIGSEGV, "x\nlast\n"), "crash", "pytest ended with SIGSEGV: last"),
        (CommandEnd(5, "no tests ran"), "crash", "pytest ended with status 5: no tests ran"),
        (CommandEnd(0, "3 passed"), "crash", "pytest ended with status 0: 3 passed"),
    ],
)
def test_run_cell_without_a_record_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, end: CommandEnd, outcome: str, reason: str
) -> None:
    commands = Commands()
    monkeypatch.setattr(commands, "run", lambda *_: end)
    result = run_cell(CellRequest(SweepCell("reference", "", "", "1"), PLAN), commands)
    assert (result.outcome, result.reason, result.log) == (outcome, reason, end.output)


def test_run_cell_environment_is_that_of_tox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_JOB_ID", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    calls: list[Any] = []
    commands = Commands()
    monkeypatch.setattr(commands, "run", lambda *args: calls.append(args) or CommandEnd(2, ""))
    run_cell(CellRequest(SweepCell("reference", "", "", "1", mode="ranks", ways=("a.b",)), PLAN), commands)
    ((argv, _, _, variables),) = calls
    assert {"RAY_JOB_ID", "PYTHONPATH"}.isdisjoint(variables)
    assert (variables["OMP_NUM_THREADS"], variables["CUDA_VISIBLE_DEVICES"]) == ("1", "3")
    assert argv[:2] == [sys.executable, "-m"]
    assert {"--framework=reference", "--mode=ranks", "--way=a.b", "--numprocesses=1", "--seed=0"} <= {*argv}


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Makes an environment with installers that succeed or not; returns their commands without those that make it."""

    def attempt(folder: Path, succeeds: Callable[[list[str]], bool]) -> list[list[str]]:
        installs: list[list[str]] = []
        commands = Commands()

        def run(argv: list[str], *_: object) -> CommandEnd:
            if "venv" in argv:
                return CommandEnd(0, "")
            installs.append(argv)
            return CommandEnd(0, "") if succeeds(argv) else CommandEnd(1, "ERROR: No matching distribution found for x")

        monkeypatch.setattr(commands, "run", run)
        monkeypatch.delenv("CONFORMANCE_SUITE_PACKAGES", raising=False)
        make_environment(folder / "environment", REQUIREMENTS, commands)
        return installs

    return attempt


def test_make_environment_uv_installs_versions_of_the_time(tmp_path: Path, attempts: Any) -> None:
    (install,) = attempts(tmp_path, lambda _: True)
    assert install[1:3] == ["pip", "install"]
    assert install[install.index("--exclude-newer") + 1] == REQUIREMENTS.before
    assert any(option.startswith("--exclude-newer-package=numpy=") for option in install)
    assert install[-3:] == ["--constraint", str(module.SUITE_LOCK), "torch==2.6.0"]


def test_make_environment_pip_is_the_fallback(tmp_path: Path, attempts: Any) -> None:
    installs = attempts(tmp_path, lambda argv: "--extra-index-url" in argv and "--constraint" not in argv)
    assert ["--constraint" in argv for argv in installs] == [True, False, True, False]
    assert installs[-1][:4] == [str(tmp_path / "environment" / "bin" / "python"), "-m", "pip", "install"]
    with pytest.raises(NotJudged) as refused:
        attempts(tmp_path, lambda _: False)
    assert refused.value.args[:2] == ("no solution", "No matching distribution found for x")


def count_processes(marker: str) -> int:
    """The number of processes with a text in their command."""
    listed = subprocess.run(["pgrep", "-fc", marker], capture_output=True, text=True, check=False)
    return int(listed.stdout)


@pytest.mark.parametrize("stubborn", [False, True])
def test_commands_run_past_the_limit_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.2)
    program = f"# {tmp_path}\n{STUBBORN if stubborn else ''}{SLEEPER}print('begun', flush=True); time.sleep(600)"
    result = Commands().run([sys.executable, "-c", program], tmp_path / "log", 3.0, os.environ)
    assert (result.status, result.last_line) == (None, "begun")
    assert count_processes(str(tmp_path)) == 0


def test_commands_close_ends_what_runs_and_lets_nothing_begin(tmp_path: Path) -> None:
    commands, lost = Commands(), []

    def run() -> None:
        try:
            commands.run([sys.executable, "-c", f"# {tmp_path}\n{SLEEPER}time.sleep(600)"], tmp_path / "log", 600, {})
        except LostCell as error:
            lost.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: count_processes(str(tmp_path)) > 0)
    begun = time.monotonic()
    commands.close()
    thread.join()
    assert time.monotonic() - begun < 30
    assert lost == ["the sweep has ended"]
    assert count_processes(str(tmp_path)) == 0
    with pytest.raises(LostCell):
        commands.run([sys.executable], tmp_path / "log", 1, {})


def test_commands_of_a_killed_process_end(tmp_path: Path) -> None:
    program = f"""
import os, sys
from pathlib import Path
from conformance.sweep.cell import Commands
argv = [sys.executable, "-c", "# {tmp_path}" + chr(10) + "import time; time.sleep(600)"]
Commands().run(argv, Path({str(tmp_path / "log")!r}), 600, os.environ)
"""
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    marker = f"# {tmp_path}"
    environment = {"PYTHONPATH": str(ROOT)}
    with running([sys.executable, str(tmp_path / "program.py")], ROOT, tmp_path / "out", **environment) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_for(lambda: count_processes(marker) == 1)
        wait_for(lambda: len(children.read_text().split()) == 2)  # the command and its guard
        process.kill()
    wait_for(lambda: count_processes(marker) == 0)


class KilledDriver(BaseException):
    """The end of the driver process."""


@dataclass
class AnsweringEngine:
    """Answers at once.

    Attributes:
        answers: for the cells of a name; others are judged.
        most: cells that are judged until the driver dies.
    """

    content: bytes
    answers: Mapping[str, list[CellResult | str]] = field(default_factory=dict)
    most: int = 1000
    requests: list[CellRequest] = field(default_factory=list)
    closed: bool = False

    def submit(self, request: CellRequest) -> Future[CellResult]:
        self.requests.append(request)
        answers = self.answers.get(f"{request.cell.version}-{request.cell.mode}")
        answer = answers.pop(0) if answers else CellResult("judged", record=self.content)
        job: Future[CellResult] = Future()
        if len(self.requests) > self.most:
            job.set_exception(KilledDriver())
        elif isinstance(answer, str):
            job.set_exception(LostCell(answer))
        else:
            job.set_result(answer)
        return job

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    """A compressed record of the plan's selection."""
    record = load(fill_journal(Journal.create(tmp_path / "one" / "record.json", header())).finish())
    return compress_content(Path("x.gz"), to_json(replace(record, selection="-k scaling", seed=0)))


def sweep(
    folder: Path,
    engine: AnsweringEngine,
    cells: tuple[SweepCell, ...] = CELLS,
    *,
    fresh: bool = False,
    plan: SweepPlan = LOCAL_PLAN,
) -> Mapping[str, CellResult]:
    """The results of a sweep."""
    names = {cell.name for cell in cells}
    return Sweep(CellFolder(folder / "sweep", plan), cells, names, lambda *_: None, fresh).run(lambda: engine)


def outcomes(folder: Path) -> list[dict[str, object]]:
    """The cells of `outcomes.json`."""
    document = json.loads((folder / "sweep" / "outcomes.json").read_bytes())
    assert document["version"] == 1
    return list(document["cells"])


def test_sweep_every_cell_has_a_record_and_an_entry(tmp_path: Path, content: bytes) -> None:
    engine = AnsweringEngine(content)
    assert {result.outcome for result in sweep(tmp_path, engine).values()} == {"judged"}
    assert len(engine.requests) == 6
    assert engine.closed
    first, *_ = outcomes(tmp_path)
    versions = {"framework": TOY, "version": "1.0", "released": "2026-01-01", "package": PACKAGE}
    assert first == {**first, **versions, "mode": "emulated", "outcome": "judged", "reason": ""}
    for entry in outcomes(tmp_path):
        assert load(tmp_path / "sweep" / "records" / str(entry["record"])).verdicts


@pytest.mark.parametrize("most", [0, 3, 5])
def test_sweep_killed_continues_and_runs_no_cell_twice(tmp_path: Path, content: bytes, most: int) -> None:
    first, second = AnsweringEngine(content, most=most), AnsweringEngine(content)
    with pytest.raises(KilledDriver):
        sweep(tmp_path, first)
    assert first.closed
    assert {result.outcome for result in sweep(tmp_path, second).values()} == {"judged"}
    assert len(second.requests) == 6 - most
    assert len(outcomes(tmp_path)) == 6


@pytest.mark.parametrize(
    ("plan", "fresh", "runs"),
    [
        (LOCAL_PLAN, False, 0),
        (LOCAL_PLAN, True, 6),
        (replace(LOCAL_PLAN, limit_s=5.0, workers=4), False, 0),
        (replace(LOCAL_PLAN, selection=("--tests=quick",)), False, 6),
        (replace(LOCAL_PLAN, seed=1), False, 6),
    ],
)
def test_sweep_again_runs_cells_whose_record_does_not_answer(
    tmp_path: Path, content: bytes, plan: SweepPlan, fresh: bool, runs: int
) -> None:
    sweep(tmp_path, AnsweringEngine(content))
    again = AnsweringEngine(content)
    sweep(tmp_path, again, fresh=fresh, plan=plan)
    assert len(again.requests) == runs


def test_sweep_holes_have_reasons_and_are_tried_again(tmp_path: Path, content: bytes) -> None:
    yanked = replace(CELLS[0], outcome="yanked", reason="it was withdrawn")
    cells = (yanked, *CELLS[1:4])
    timed_out = CellResult("out of time", "more than 5 s", log="the last line")
    answers = {"1.0-ranks": [timed_out], "2.0-emulated": [CellResult("import failed", "no module")]}
    engine = AnsweringEngine(content, answers)
    results = sweep(tmp_path, engine, cells)
    assert [(entry["outcome"], entry["reason"], entry["record"]) for entry in outcomes(tmp_path)][:3] == [
        ("yanked", "it was withdrawn", ""),
        ("out of time", "more than 5 s", ""),
        ("import failed", "no module", ""),
    ]
    assert (tmp_path / "sweep" / "logs" / f"{CELLS[1].name}.txt").read_text() == "the last line"
    assert results[CELLS[3].name].outcome == "judged"
    again = AnsweringEngine(content)
    assert sweep(tmp_path, again, cells)[CELLS[1].name].outcome == "judged"
    assert sorted(request.cell.version for request in again.requests) == ["1.0", "2.0"]


def test_sweep_lost_cell_is_queued_again_some_times(tmp_path: Path, content: bytes) -> None:
    engine = AnsweringEngine(content, {"1.0-emulated": ["node died"], "2.0-ranks": ["a", "b", "worker died", "never"]})
    results = sweep(tmp_path, engine)
    assert results[CELLS[0].name].outcome == "judged"
    lost = results[CELLS[3].name]
    assert (lost.outcome, lost.reason) == ("crash", "lost 3 times (LostCell: worker died)")
    assert len(engine.requests) == 6 + 1 + 2


def judge(request: CellRequest, _: Commands | None = None) -> CellResult:
    """Judge version 1; version 2 is lost."""
    if request.cell.version == "2":
        raise LostCell("the process\nended")
    return CellResult("judged", record=b"\x00\xff")


def check_answers(engine: CellEngine) -> None:
    """Asserts that one cell is judged and the other one is lost."""
    judged, lost = engine.submit(CPU), engine.submit(GPU)
    assert judged.result() == judge(CPU)
    with pytest.raises(LostCell, match="ended"):
        lost.result()
    assert judged.done()


def test_local_engine_runs_cells_here() -> None:
    engine = LocalEngine(2, judge)
    check_answers(engine)
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


def test_ray_engine_queues_and_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray = MagicMock()
    make_task, resources = ray.remote.return_value, {"CPU": 8.0, "bench": 1.0}
    tasks: list[MagicMock] = []

    def start(request: CellRequest) -> MagicMock:
        job: Future[CellResult] = Future()
        if request.cell.version == "1":
            job.set_result(judge(request))
        elif len(tasks) == 1:
            job.set_exception(LostCell("the node ended"))
        tasks.append(MagicMock(**{"future.return_value": job}))
        return tasks[-1]

    make_task.return_value.options.return_value.remote.side_effect = start
    ray.nodes.return_value = [
        {"Alive": True, "Resources": resources},
        {"Alive": False, "Resources": dict.fromkeys(("CPU", "GPU", "bench"), 8.0)},
    ]
    monkeypatch.setitem(sys.modules, "ray", ray)
    engine = RayEngine("127.0.0.1:1", {"bench": 0.5}, judge)
    check_answers(engine)
    assert ray.init.call_args.kwargs["address"] == "127.0.0.1:1"
    assert ray.remote.call_args == call(max_retries=0)
    cpu, gpu = make_task.return_value.options.call_args_list
    assert cpu == call(num_cpus=2, num_gpus=0, resources={"bench": 0.5}, name=CPU.cell.name)
    assert gpu.kwargs["num_gpus"] == 1
    assert capsys.readouterr().err == f"{GPU.cell.name} waits for a node that has CPU 2, GPU 1, bench 0.5\n"
    engine.submit(GPU)
    engine.close()
    assert ray.cancel.call_args_list == [call(tasks[2], force=True)]
    ray.shutdown.assert_called_once_with()


def test_engine_that_cannot_be_used_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray = MagicMock(**{"init.side_effect": ConnectionError("no cluster\nthere")})
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(NoEngine, match=re.escape("does not answer (no cluster there); start it, or set RAY_ADDRESS")):
        RayEngine("nowhere")
    for name, start in (("ray", RayEngine), ("submitit", lambda: SlurmEngine(tmp_path, "s"))):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(NoEngine, match=f"{name} is not installed: pip install {name}"):
            start()


class RefusedError(Exception):
    """The error of submitit when sbatch refuses a job."""


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Slurm through a submitit whose jobs have already ended."""
    submitit = MagicMock()
    submitit.core.utils.FailedJobError = RefusedError
    monkeypatch.setitem(sys.modules, "submitit", submitit)
    slurm = submitit.AutoExecutor.return_value
    slurm.submit.side_effect = lambda run, request: MagicMock(
        **{"result.side_effect": lambda: run(request), "done.return_value": True}
    )
    return slurm


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
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scancel: Path, slurm: MagicMock
) -> None:
    monkeypatch.setattr(module, "run_cell", judge)
    engine = SlurmEngine(tmp_path, "sweep", {"partition": "cpu"})
    assert scancel.read_text() == "--me --name=sweep\n"
    assert sys.modules["submitit"].AutoExecutor.call_args == call(folder=str(tmp_path), cluster="slurm")
    check_answers(engine)
    cpu, gpu = slurm.update_parameters.call_args_list
    options = {"slurm_additional_parameters": {"partition": "cpu"}}
    assert cpu == call(name="sweep", timeout_min=91, cpus_per_task=2, gpus_per_node=0, **options)
    assert gpu.kwargs["gpus_per_node"] == 1
    job = MagicMock(**{"done.return_value": False})
    slurm.submit.side_effect = [job]
    engine.submit(CPU)
    engine.close()
    job.cancel.assert_called_once_with(check=False)


@pytest.mark.usefixtures("scancel")
def test_slurm_engine_refused_job_is_one_line(tmp_path: Path, slurm: MagicMock) -> None:
    slurm.submit.side_effect = RefusedError("sbatch: error: first\nsbatch: error: Invalid generic resource\n")
    with pytest.raises(NoEngine, match=r"^sbatch: error: Invalid generic resource; correct --reserve, or `workers`"):
        SlurmEngine(tmp_path, "s").submit(GPU)
