"""Cells of a sweep or a bisection, and their engines: a cell is a fresh environment, one pytest run and one record."""

import hashlib
import importlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conformance.fingerprints.cases import package_files
from conformance.runner.machine import shareable
from conformance.runner.retry import repeat
from conformance.runner.subprocesses import VARIABLES, ending_signals, guard_group, killed_by
from conformance.sweep.plan import NO_TESTS, SweepCell, SweepPlan
from conformance.test_ids import ROOT
from frameworks.installer.distributions import distribution_of
from frameworks.installer.install import driver
from results.compare.fingerprints import list_fingerprints
from results.record.files import RecordError, compress_content, inside, one_line, unwritable
from results.record.files import replace as replace_file
from results.record.reading import Record, load, to_json

UNAVAILABLE = frozenset({"no wheel", "yanked", "no solution"})
"""Outcomes of cells that cannot be judged on this machine."""

SUITE_VARIABLE = "CONFORMANCE_SUITE_PACKAGES"
"""Environment variable with a site-packages folder of the suite's requirements; environments then need no install."""

SUITE_LOCK = ROOT / "locks" / "suite.txt"
FINGERPRINTS_S = 900.0
"""Limit for the fingerprints of one environment, in seconds."""
INSTALL_S = 3600.0
"""Limit for the installation of one environment, in seconds."""
GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""
TAIL = 20_000
"""Number of bytes kept from the end of an output."""

_LEFT_OUT = ("RAY_", "SLURM_", "PYTEST_", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONFORMANCE_MODES")
_UNSOLVABLE = re.compile(
    r"^.*(?:No matching distribution found|ResolutionImpossible|No solution found|conflicting dependencies).*$",
    re.MULTILINE,
)
_NOT_IMPORTED = re.compile(r"^.*(?:cannot be imported|ImportError|ModuleNotFoundError).*$", re.MULTILINE)


@dataclass(frozen=True)
class CellRequest:
    """One cell to judge.

    Attributes:
        plan: the plan, without its tables of cells.
        prefix: prefix of the temporary folder's name.
        path: folders from which the adapter is imported, in the form of PYTHONPATH.
    """

    cell: SweepCell
    plan: SweepPlan
    prefix: str = "conformance-"
    path: str = ""


@dataclass(frozen=True)
class CellResult:
    """The result of a cell.

    Attributes:
        outcome: "judged", one of `UNAVAILABLE`, "install failed", "import failed", "out of time" or "crash".
        reason: one line, "" for judged cells.
        record: a compressed record, b"" without one.
        fingerprints: fingerprints of the cell's packages, by file name.
        seconds: duration of the whole cell.
        log: the end of the output of the step that failed.
    """

    outcome: str
    reason: str = ""
    record: bytes = b""
    fingerprints: Mapping[str, bytes] = field(default_factory=dict)
    seconds: float = 0.0
    log: str = ""


class LostCell(Exception):
    """A cell ended without a result."""


class NotJudged(Exception):
    """A cell or an environment cannot be made; the attributes are those of the `CellResult`."""

    def __init__(self, outcome: str, reason: str, log: str = "") -> None:
        self.outcome, self.reason, self.log = outcome, one_line(shareable(reason)), log
        super().__init__(self.outcome, self.reason, self.log)


@dataclass(frozen=True)
class CommandEnd:
    """The exit status of a command, negative for a signal and None at the time limit, and the end of its output."""

    status: int | None
    output: str

    @property
    def last_line(self) -> str:
        """The last line of the output that is not empty."""
        return next((line.strip() for line in reversed(self.output.splitlines()) if line.strip()), "")


class Commands:
    """Runs commands with a time limit, each in a process group that ends with it, with this process, or by `close`."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def run(
        self, argv: Sequence[str], log: Path, limit_s: float, environment: Mapping[str, str], folder: Path = ROOT
    ) -> CommandEnd:
        """Run a command in a folder to its end or to a limit.

        Raises:
            LostCell: the commands are closed.
        """
        with log.open("wb") as file, self._lock:
            if self._closed:
                raise LostCell("the sweep has ended")
            process = subprocess.Popen(
                argv,
                cwd=folder,
                env=dict(environment),
                process_group=0,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            self._running.add(process)
        is_late = False
        try:
            with guard_group(process.pid):
                process.wait(max(limit_s, 0.0))
        except subprocess.TimeoutExpired:
            is_late = True
        finally:
            _end(process)
            with self._lock:
                self._running.discard(process)
        if self._closed:
            raise LostCell("the sweep has ended")
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL))
            output = file.read().decode("utf-8", "replace")
        return CommandEnd(None if is_late else process.returncode, output)

    def close(self) -> None:
        """End all commands, and refuse new ones."""
        with self._lock:
            self._closed = True
            running = [*self._running]
            for process in running:
                process.terminate()
        deadline = time.monotonic() + GRACE_S
        for process in running:
            _end(process, max(0.0, deadline - time.monotonic()))


def _end(process: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """End a process and its group."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_cell(request: CellRequest, commands: Commands | None = None) -> CellResult:
    """Make the environment of a cell, run the suite in it, and return the record or why there is none.

    Raises:
        LostCell: the commands were closed meanwhile.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=request.prefix, ignore_cleanup_errors=True) as name:
        folder, commands = Path(name), commands or Commands()
        try:
            python = Path(sys.executable)
            if distribution_of(request.cell.framework) is not None:
                python = make_environment(folder / "environment", requirements_of(request.cell), commands)
            content = b""
            if request.plan.selection != NO_TESTS:
                record = _run_suite(request, python, folder, commands)
                content = compress_content(Path("record.json.gz"), to_json(record))
            fingerprints = _make_fingerprints(request, python, folder, commands) if request.plan.fingerprints else {}
            if not content and not fingerprints:
                raise NotJudged("crash", "no fingerprint was made", (folder / "fingerprints.log").read_text("utf-8"))
            result = CellResult("judged", record=content, fingerprints=fingerprints)
        except NotJudged as refusal:
            result = CellResult(refusal.outcome, refusal.reason, log=refusal.log)
        except (RecordError, OSError) as error:
            result = CellResult("crash", one_line(shareable(str(error))))
        return replace(result, seconds=time.monotonic() - start)


def load_finished(path: Path, plan: SweepPlan) -> Record | None:
    """Return the record of a cell in a file; None without a valid one, or if it is of another selection or seed."""
    try:
        record = load(path) if path.is_file() else None
    except RecordError:
        return None
    is_of_plan = record is not None and (record.selection, record.seed) == (" ".join(plan.selection), plan.seed)
    return record if is_of_plan else None


@dataclass(frozen=True)
class Requirements:
    """The requirements of an environment.

    Attributes:
        names: requirements of the packages to install.
        indexes: additional package indexes.
        before: upload time before which all packages but `exempt` must lie, "" for any.
        exempt: packages that may be newer.
        backend: value of uv's `--torch-backend`.
    """

    names: tuple[str, ...]
    indexes: tuple[str, ...] = ()
    before: str = ""
    exempt: tuple[str, ...] = ()
    backend: str = "cpu"


def requirements_of(cell: SweepCell) -> Requirements:
    """Return the requirements of a cell's environment; on a GPU, they select wheels for this machine's driver.

    Raises:
        NotJudged: the adapter names nothing to install.
    """
    distribution = distribution_of(cell.framework)
    if distribution is None:
        raise NotJudged("no solution", f"{cell.framework} says nothing of what is to be installed")
    gpu, pins = None if cell.device == "cpu" else driver(), cell.packages
    names = [f"{distribution.cpu if gpu is None else distribution.gpu}=={cell.framework_version}"]
    names += [f"{name}=={version}" for name, version in pins.items()]
    companions = {canonicalize_name(Requirement(text).name): text for text in distribution.companions_in([cell.mode])}
    names += [text for name, text in companions.items() if name not in pins]
    limits = map(Requirement, distribution.limits_of(cell.framework_version))
    names += [str(limit) for limit in limits if canonicalize_name(limit.name) not in pins]
    index = "" if gpu is None else distribution.index_of(cell.framework_version, gpu)
    groups: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    suite = [] if os.environ.get(SUITE_VARIABLE) else [*groups["suite"], *groups["run"]]
    exempt = {str(canonicalize_name(Requirement(name).name)) for name in (*suite, names[0])} | pins.keys()
    backend = "cpu" if gpu is None else "auto"
    return Requirements((*names, *suite), (index,) if index else (), cell.before, tuple(sorted(exempt)), backend)


def make_environment(folder: Path, wanted: Requirements, commands: Commands) -> Path:
    """Make a virtual environment, by uv or else by pip, and return its Python.

    Packages that the suite itself needs get their locked versions if the requirements admit these.

    Raises:
        NotJudged: neither can install it.
    """
    python, log, result = folder / "bin" / "python", folder.with_suffix(".log"), CommandEnd(1, "")
    for create, install in _installers(folder, wanted):
        for constraint in (["--constraint", str(SUITE_LOCK)], []):
            shutil.rmtree(folder, ignore_errors=True)
            result = commands.run(create, log, INSTALL_S, os.environ)
            if result.status == 0:
                result = commands.run([*install, *constraint, *wanted.names], log, INSTALL_S, os.environ)
            if result.status == 0:
                if packages := os.environ.get(SUITE_VARIABLE):
                    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
                    (site / "suite.pth").write_text(f"{packages}\n", encoding="utf-8")
                return python
    if unsolvable := _UNSOLVABLE.search(result.output):
        raise NotJudged("no solution", unsolvable[0].strip().removeprefix("ERROR: "), result.output)
    reason = f"no end within {INSTALL_S:.0f} s" if result.status is None else result.last_line
    raise NotJudged("install failed", reason.removeprefix("ERROR: "), result.output)


def _installers(folder: Path, wanted: Requirements) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the commands that make an environment and install into it: first uv's, if it is installed, then pip's."""
    python = str(folder / "bin" / "python")
    folders = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", "")))
    if uv := shutil.which("uv", path=folders):
        install = [uv, "pip", "install", "--quiet", "--python", python, f"--torch-backend={wanted.backend}"]
        if wanted.before:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            install += ["--exclude-newer", wanted.before]
            install += [f"--exclude-newer-package={name}={now}" for name in wanted.exempt]
        yield [uv, "venv", "--quiet", "--python", sys.executable, str(folder)], install
    indexes = [argument for index in wanted.indexes for argument in ("--extra-index-url", index)]
    install = [python, "-m", "pip", "install", "--quiet", "--no-input", "--no-compile", *indexes]
    yield [sys.executable, "-m", "venv", str(folder)], install


def _run_suite(request: CellRequest, python: Path, folder: Path, commands: Commands) -> Record:
    """Run the suite and repeat verdicts that need action, within the plan's limit, with the variables that tox sets."""
    cell, plan, path = request.cell, request.plan, folder / "record.json"
    (folder / "tmp").mkdir(exist_ok=True)
    environment = _environment(request, folder)
    options = [f"--framework={cell.framework}", f"--device={cell.device}", *(f"--way={way}" for way in cell.ways)]
    options += [f"--mode={cell.mode}"] if cell.mode else []
    suite = [str(python), "-m", "pytest", *options]
    several = ["--max-worker-restart=1000", "--dist=worksteal", "--timeout=120"]
    deadline = time.monotonic() + plan.limit_s

    def run(argv: Sequence[str]) -> CommandEnd:
        return commands.run(argv, folder / "output.log", deadline - time.monotonic(), environment)

    shared = ["-q", f"--seed={plan.seed}", f"--record={path}", *plan.selection]
    result = run([*suite, f"--numprocesses={plan.workers}", *several, *shared])
    if result.status in (0, 1) and path.is_file() and plan.repeat:
        repeat(path, [*suite, "--numprocesses=1", *several], lambda _: None, run)
    if result.status is None or time.monotonic() >= deadline:
        raise NotJudged("out of time", f"the suite took more than {plan.limit_s:.0f} s", result.output)
    if result.status in (0, 1) and path.is_file():
        return replace(load(path), selection=" ".join(plan.selection))
    if missing := _NOT_IMPORTED.search(result.output):
        raise NotJudged("import failed", missing[0], result.output)
    ending = killed_by(result.status) or f"status {result.status}"
    raise NotJudged("crash", f"pytest ended with {ending}: {result.last_line}", result.output)


def _environment(request: CellRequest, folder: Path) -> dict[str, str]:
    """Return the variables of a cell's processes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
    environment |= {**VARIABLES, "XLA_FLAGS": os.environ.get("XLA_FLAGS", VARIABLES["XLA_FLAGS"])}
    return environment | {"TMPDIR": str(folder / "tmp"), **({"PYTHONPATH": request.path} if request.path else {})}


def _make_fingerprints(request: CellRequest, python: Path, folder: Path, commands: Commands) -> dict[str, bytes]:
    """Make the fingerprints of a cell's packages; none if that fails, which costs the record nothing."""
    argv = [str(python), "-m", "conformance", "run", request.cell.framework, "--fingerprints"]
    if request.cell.package in package_files(request.cell.framework):
        argv.append(request.cell.package)
    environment = _environment(request, folder) | {"CONFORMANCE_RESULTS": str(folder)}
    commands.run(argv, folder / "fingerprints.log", FINGERPRINTS_S, environment)
    return {path.name: path.read_bytes() for path in list_fingerprints([folder / "fingerprints"])}


POLL_S = 0.5
"""Seconds between two checks for ended cells."""


class NoEngine(Exception):
    """An engine cannot be used; the message is one line with a remedy."""


class CellJob(Protocol):
    """A cell that an engine runs: a future, or an object with the same methods."""

    def done(self) -> bool:
        """Return whether the cell has ended."""

    def result(self) -> CellResult:
        """Return the cell's result; a lost cell raises any exception."""


class CellEngine(Protocol):
    """Runs cells. It repeats none: the caller submits a lost cell again."""

    def submit(self, request: CellRequest) -> CellJob:
        """Queue a cell.

        Raises:
            NoEngine: it cannot be queued.
        """

    def close(self) -> None:
        """End all cells."""


def gpus_of(request: CellRequest) -> int:
    """Return the number of GPUs that a cell needs."""
    return 0 if request.cell.device == "cpu" else 1


class LocalEngine:
    """Runs cells in this process, `jobs` at the same time, each in a thread that waits for the cell's commands."""

    def __init__(self, jobs: int, run: Callable[[CellRequest, Commands], CellResult] = run_cell) -> None:
        self._pool, self._commands, self._run = ThreadPoolExecutor(jobs), Commands(), run

    def submit(self, request: CellRequest) -> CellJob:
        """Queue a cell."""
        return self._pool.submit(self._run, request, self._commands)

    def close(self) -> None:
        """End all cells."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._commands.close()
        self._pool.shutdown()


class RayEngine:
    """Runs cells as tasks of an existing Ray cluster. Every node has this checkout at the same path.

    Args:
        address: address of the cluster; "auto" for RAY_ADDRESS, or a cluster of this machine.
        resources: custom resources that a cell reserves.

    Raises:
        NoEngine: Ray is not installed, or the cluster does not answer.
    """

    def __init__(
        self,
        address: str = "auto",
        resources: Mapping[str, float] | None = None,
        run: Callable[[CellRequest], CellResult] = run_cell,
    ) -> None:
        self._ray = _import_engine("ray")
        try:
            self._ray.init(address=address, log_to_driver=False, configure_logging=False)
        except Exception as error:
            problem = f"the Ray cluster does not answer ({error}); start it, or set RAY_ADDRESS"
            raise NoEngine(one_line(problem)) from None
        self._task = self._ray.remote(max_retries=0)(run)
        self._resources = dict(resources or {})
        self._tasks: dict[CellJob, Any] = {}

    def submit(self, request: CellRequest) -> CellJob:
        """Queue a cell; one on a GPU reserves a GPU."""
        cpus, gpus = request.plan.workers, gpus_of(request)
        wanted = {"CPU": cpus, "GPU": gpus, **self._resources}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
            listed = ", ".join(f"{name} {amount:g}" for name, amount in wanted.items() if amount)
            print(one_line(f"{request.cell.name} waits for a node that has {listed}"), file=sys.stderr)
        options = {"num_cpus": cpus, "num_gpus": gpus, "resources": self._resources, "name": request.cell.name}
        task = self._task.options(**options).remote(request)
        job: CellJob = task.future()
        self._tasks[job] = task
        return job

    def close(self) -> None:
        """End all tasks; the commands of a killed worker end with it."""
        for job, task in self._tasks.items():
            if not job.done():
                self._ray.cancel(task, force=True)
        self._ray.shutdown()


class SlurmEngine:
    """Runs each cell as a Slurm job, by submitit. Every node has this checkout and the folder at the same paths.

    Args:
        folder: folder for the files of the jobs.
        name: name of all jobs of the sweep; jobs of that name that a killed run left are cancelled.
        options: additional options of sbatch, such as partition.

    Raises:
        NoEngine: submitit is not installed, or there is no Slurm.
    """

    def __init__(self, folder: Path, name: str, options: Mapping[str, str] | None = None) -> None:
        self._submitit = _import_engine("submitit")
        logging.getLogger("submitit").setLevel(logging.ERROR)
        try:
            self._executor = self._submitit.AutoExecutor(folder=str(folder), cluster="slurm")
            subprocess.run(["scancel", "--me", f"--name={name}"], capture_output=True, check=False, timeout=60.0)
        except Exception as error:
            raise NoEngine(one_line(f"Slurm cannot be used ({error}); run where sbatch is")) from None
        self._name, self._options = name, dict(options or {})
        self._jobs: list[Any] = []

    def submit(self, request: CellRequest) -> CellJob:
        """Queue a cell; one on a GPU asks for a GPU.

        Raises:
            NoEngine: sbatch refuses the job.
        """
        self._executor.update_parameters(
            name=self._name,
            timeout_min=int((request.plan.limit_s + INSTALL_S) / 60) + 1,
            cpus_per_task=request.plan.workers,
            gpus_per_node=gpus_of(request),
            slurm_additional_parameters=self._options,
        )
        try:
            job: CellJob = self._executor.submit(run_cell, request)
        except self._submitit.core.utils.FailedJobError as error:
            reason = str(error).strip().splitlines()[-1]
            raise NoEngine(one_line(f"{reason}; correct --reserve, or `workers` in the plan")) from None
        self._jobs.append(job)
        return job

    def close(self) -> None:
        """Cancel all jobs that have not ended."""
        for job in self._jobs:
            if not job.done():
                job.cancel(check=False)


def _import_engine(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise NoEngine(f"{name} is not installed: pip install {name}") from None


RECORDS, FINGERPRINTS, OUTCOMES, LOGS = "records", "fingerprints", "outcomes.json", "logs"
ATTEMPTS = 3
"""Number of starts of a cell whose worker or machine is lost each time."""

Tell = Callable[[SweepCell, CellResult, bool], object]
"""Called with a cell, its result, and whether it ended in this run."""


@dataclass(frozen=True)
class CellFolder:
    """The folder of a sweep or a bisection; records of another selection or seed than the plan's do not count."""

    path: Path
    plan: SweepPlan

    @property
    def digest(self) -> str:
        """8 hexadecimal digits of the path's hash, for the names of jobs and temporary folders."""
        return hashlib.sha256(os.path.realpath(self.path).encode()).hexdigest()[:8]

    def request(self, cell: SweepCell) -> CellRequest:
        """Return the request to judge a cell."""
        path = str(Path.cwd()) if ":" in cell.framework else ""
        return CellRequest(cell, replace(self.plan, groups=()), f"conformance-{self.digest}-", path)

    def record(self, cell: SweepCell) -> Path:
        """Return the path of a cell's record."""
        return inside(self.path / RECORDS, f"{cell.name}.json.gz")

    def fingerprints(self, cell: SweepCell) -> Path:
        """Return the folder of the fingerprints of a cell's packages."""
        return inside(self.path / FINGERPRINTS, cell.name)

    def is_done(self, cell: SweepCell) -> bool:
        """Return whether a cell has a record with the plan's selection and seed, or fingerprints if these are all."""
        if self.plan.selection == NO_TESTS:
            return bool(list_fingerprints([self.fingerprints(cell)]))
        return load_finished(self.record(cell), self.plan) is not None

    def store(self, cell: SweepCell, result: CellResult) -> None:
        """Write the record of a result, or without one the end of the output."""
        log = inside(self.path / LOGS, f"{cell.name}.txt")
        fingerprints = ((self.fingerprints(cell) / name, content) for name, content in result.fingerprints.items())
        for path, content in ((self.record(cell), result.record), (log, result.log.encode()), *fingerprints):
            if content:
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, content)

    def clean(self) -> None:
        """Remove temporary folders that a killed run left on this machine."""
        for folder in Path(tempfile.gettempdir()).glob(f"conformance-{self.digest}-*"):
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Sweep:
    """The cells of one sweep, and the results of those that were chosen.

    Attributes:
        cells: all cells of the plan.
        chosen: names of the cells to judge.
        fresh: whether cells that have a record are judged again.
        tell: called for each chosen cell.
    """

    folder: CellFolder
    cells: Sequence[SweepCell]
    chosen: Collection[str]
    tell: Tell
    fresh: bool = False
    results: dict[str, CellResult] = field(default_factory=dict)

    def run(self, engine: Callable[[], CellEngine]) -> Mapping[str, CellResult]:
        """Judge the chosen cells that have no record; return all known results by cell name.

        Args:
            engine: starts the engine; it is called only if a cell is due.

        Raises:
            NoEngine: the engine cannot be started, or refuses a cell.
            RecordError: the folder cannot be written.
        """
        try:
            self.folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.folder.path, error) from None
        self.folder.clean()
        self.results = self._load_outcomes()
        due = []
        for cell in self.cells:
            if cell.name not in self.chosen:
                continue
            if self.folder.is_done(cell) and not self.fresh:
                self._end(cell, CellResult("judged"), is_new=False)
            elif cell.outcome:
                self._end(cell, CellResult(cell.outcome, cell.reason))
            else:
                due.append(cell)
        if due:
            with ending_signals(once=True):
                started = engine()
                try:
                    self._judge(started, due)
                finally:
                    started.close()
                    self.folder.clean()
        self._write_outcomes()
        return self.results

    def _judge(self, engine: CellEngine, due: Sequence[SweepCell]) -> None:
        attempts = dict.fromkeys((cell.name for cell in due), 1)
        running = [(cell, engine.submit(self.folder.request(cell))) for cell in due]
        while running:
            finished = [(cell, job) for cell, job in running if job.done()]
            running = [pair for pair in running if pair not in finished]
            for cell, job in finished:
                try:
                    result = job.result()
                except Exception as error:  # a lost worker or machine, by any exception of the engine
                    if attempts[cell.name] < ATTEMPTS:
                        with suppress(NoEngine):
                            running.append((cell, engine.submit(self.folder.request(cell))))
                            attempts[cell.name] += 1
                            continue
                    last_line = [type(error).__name__, *str(error).strip().splitlines()[-1:]]
                    lost = f"lost {attempts[cell.name]} times ({': '.join(last_line)})"
                    result = CellResult("crash", one_line(lost))
                self._end(cell, result)
            if not finished:
                time.sleep(POLL_S)

    def _end(self, cell: SweepCell, result: CellResult, *, is_new: bool = True) -> None:
        self.folder.store(cell, result)
        self.results[cell.name] = replace(result, record=b"", fingerprints={}, log="")
        self.tell(cell, result, is_new)
        if is_new:
            self._write_outcomes()

    def _load_outcomes(self) -> dict[str, CellResult]:
        """Return the results of cells that earlier runs stored."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            cells = json.loads((self.folder.path / OUTCOMES).read_bytes())["cells"]
            return {str(cell["name"]): CellResult(str(cell["outcome"]), str(cell["reason"])) for cell in cells}
        return {}

    def _write_outcomes(self) -> None:
        entries = []
        for cell in self.cells:
            if (result := self.results.get(cell.name)) is not None:
                path = self.folder.record(cell)
                record = path.name if result.outcome == "judged" and path.is_file() else ""
                ending = {"outcome": result.outcome, "reason": result.reason, "record": record}
                entries.append({"name": cell.name, **cell.document(), **ending})
        text = json.dumps({"version": 1, "cells": entries}, indent=1, ensure_ascii=False)
        replace_file(self.folder.path / OUTCOMES, text.encode() + b"\n")
