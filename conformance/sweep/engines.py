"""Engines: where the cells of a sweep run. An engine queues and places them; `run_cell` does the rest."""

import importlib
import logging
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from conformance.sweep.cell import INSTALL_S, CellRequest, CellResult, Commands, run_cell
from results.record.files import one_line

POLL_S = 0.5
"""Seconds between two looks at what has ended."""

Ended = tuple[CellRequest, CellResult | str]
"""A cell that has ended, with its result, or with the reason why it was lost."""


class NoEngine(Exception):
    """An engine cannot be used; the message is one line with a remedy."""


class CellEngine(Protocol):
    """Runs cells. It repeats none: a lost cell is reported, and the caller submits it again."""

    def submit(self, request: CellRequest) -> None:
        """Queue a cell.

        Raises:
            NoEngine: it cannot be queued.
        """

    def next(self) -> Ended:
        """Wait for a cell that has ended."""

    def close(self) -> None:
        """End all cells."""


def gpus_of(request: CellRequest) -> int:
    """The GPUs that a cell needs."""
    return 0 if request.cell.device == "cpu" else 1


class LocalEngine:
    """Threads of this process, each of which waits for the commands of one cell.

    Args:
        jobs: how many cells run at the same time.
    """

    def __init__(self, jobs: int, run: Callable[[CellRequest, Commands], CellResult] = run_cell) -> None:
        self._pool, self._free, self._run = ThreadPoolExecutor(jobs), jobs, run
        self._commands = Commands()
        self._queued: deque[CellRequest] = deque()
        self._ended: SimpleQueue[Ended] = SimpleQueue()

    def submit(self, request: CellRequest) -> None:
        """Queue a cell."""
        self._queued.append(request)
        self._start()

    def next(self) -> Ended:
        """Wait for a cell; the main thread wakes up, so that it heeds signals that another thread took."""
        while True:
            with suppress(Empty):
                ended = self._ended.get(timeout=POLL_S)
                self._free += 1
                self._start()
                return ended

    def close(self) -> None:
        """End all cells."""
        self._queued.clear()
        self._commands.close()
        self._pool.shutdown()

    def _start(self) -> None:
        while self._free and self._queued:
            self._free -= 1
            self._pool.submit(self._judge, self._queued.popleft())

    def _judge(self, request: CellRequest) -> None:
        try:
            self._ended.put((request, self._run(request, self._commands)))
        except Exception as error:
            self._ended.put((request, one_line(f"{type(error).__name__}: {error}")))


class RayEngine:
    """Tasks of an existing Ray cluster. Every node has this checkout at the same path.

    Args:
        address: of the cluster; "auto" for RAY_ADDRESS, or a cluster of this machine.
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
        self._ray = _imported("ray", "ray")
        try:
            self._ray.init(address=address, log_to_driver=False, configure_logging=False)
        except Exception as error:
            problem = f"the Ray cluster does not answer ({error}); start it, or set RAY_ADDRESS"
            raise NoEngine(one_line(problem)) from None
        self._task = self._ray.remote(max_retries=0)(run)
        self._resources = dict(resources or {})
        self._running: dict[Any, CellRequest] = {}

    def submit(self, request: CellRequest) -> None:
        """Queue a cell; one on a GPU reserves a GPU."""
        cpus, gpus = request.plan.workers, gpus_of(request)
        wanted = {"CPU": cpus, "GPU": gpus, **self._resources}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
            listed = ", ".join(f"{name} {amount:g}" for name, amount in wanted.items() if amount)
            print(one_line(f"{request.cell.name} waits for a node that has {listed}"), file=sys.stderr)
        task = self._task.options(num_cpus=cpus, num_gpus=gpus, resources=self._resources, name=request.cell.name)
        self._running[task.remote(request)] = request

    def next(self) -> Ended:
        """Wait for a task."""
        tasks: list[Any] = []
        while not tasks:
            tasks, _ = self._ray.wait([*self._running], num_returns=1, timeout=POLL_S)
        request = self._running.pop(tasks[0])
        try:
            return request, self._ray.get(tasks[0])
        except self._ray.exceptions.RayError as error:
            return request, one_line(f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")

    def close(self) -> None:
        """End all tasks; the commands of a killed worker end with it."""
        for task in self._running:
            self._ray.cancel(task, force=True)
        self._ray.shutdown()


class SlurmEngine:
    """Jobs of Slurm, by submitit, one for each cell. Every node has this checkout and the folder at the same paths.

    Args:
        folder: for the files of the jobs.
        name: of all jobs of the sweep; jobs of that name that a killed run left are cancelled.
        options: more options of sbatch, such as partition.

    Raises:
        NoEngine: submitit is not installed, or there is no Slurm.
    """

    def __init__(self, folder: Path, name: str, options: Mapping[str, str] | None = None) -> None:
        self._submitit = _imported("submitit", "submitit")
        logging.getLogger("submitit").setLevel(logging.ERROR)
        try:
            self._executor = self._submitit.AutoExecutor(folder=str(folder), cluster="slurm")
            subprocess.run(["scancel", "--me", f"--name={name}"], capture_output=True, check=False, timeout=60.0)
        except Exception as error:
            raise NoEngine(one_line(f"Slurm cannot be used ({error}); run where sbatch is")) from None
        self._name, self._options = name, dict(options or {})
        self._running: dict[str, tuple[CellRequest, Any]] = {}

    def submit(self, request: CellRequest) -> None:
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
            self._running[request.cell.name] = request, self._executor.submit(run_cell, request)
        except self._submitit.core.utils.FailedJobError as error:
            reason = str(error).strip().splitlines()[-1]
            raise NoEngine(one_line(f"{reason}; correct --reserve, or `workers` in the plan")) from None

    def next(self) -> Ended:
        """Wait for a job."""
        while True:
            for name, (request, job) in self._running.items():
                if job.done():
                    del self._running[name]
                    try:
                        return request, job.result()
                    except Exception as error:
                        return request, one_line(f"{type(error).__name__}: {error}")
            time.sleep(POLL_S)

    def close(self) -> None:
        """Cancel all jobs."""
        for _, job in self._running.values():
            job.cancel(check=False)


def _imported(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise NoEngine(f"{package} is not installed: pip install {package}") from None
