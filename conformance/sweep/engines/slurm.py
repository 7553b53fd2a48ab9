"""Cells as jobs of Slurm, through submitit. Every node sees this checkout and the sweep's folder at the same paths."""

from __future__ import annotations

import importlib
import logging
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec

from conformance.sweep.engines import NoEngine
from conformance.sweep.launching import judge_encoded
from conformance.sweep.requests import CellRequest, CellResult
from results.record.files import one_line

POLL_S = 1.0
INSTALL_S = 3600.0
"""Added to a cell's limit for the installation and the repetitions."""
QUEUE_S = 15.0
"""Seconds between two looks at the queue, and those that a job's result may come later than its end."""

_PREFIX = "conformance-"
_COMMAND_S = 60.0


class SlurmEngine:
    """Jobs, one for each cell.

    Args:
        folder: for the files of the jobs.
        sweep: digest of the sweep's folder. Jobs that a killed run of the sweep left are cancelled.
        options: more options of sbatch, such as partition.

    Raises:
        NoEngine: submitit is not installed, or there is no Slurm.
    """

    def __init__(self, folder: Path, sweep: str, cpus: int = 1, options: dict[str, str] | None = None) -> None:
        try:
            self._submitit: Any = importlib.import_module("submitit")
        except ImportError:
            raise NoEngine("submitit is not installed: pip install submitit") from None
        try:
            self._executor = self._submitit.AutoExecutor(folder=str(folder), cluster="slurm")
        except Exception as error:
            raise NoEngine(one_line(f"Slurm cannot be used ({error}); run where sbatch is")) from None
        logging.getLogger("submitit").setLevel(logging.ERROR)
        self._cpus, self._options = cpus, dict(options or {})
        self._running: dict[str, Any] = {}
        self._ended: dict[str, float] = {}
        self._looked = time.monotonic()
        left = [job for job, name in (queue() or {}).items() if name.startswith(f"{_PREFIX}{sweep}-")]
        if left:
            _output("scancel", *left)

    def submit(self, key: str, request: CellRequest) -> None:
        """Queues a cell; one on a GPU asks for a GPU.

        Raises:
            NoEngine: sbatch refuses the job.
        """
        gpus = 0 if request.cell.device == "cpu" else 1
        minutes = int((request.plan.limit_s + INSTALL_S) / 60) + 1
        self._executor.update_parameters(
            name=f"{_PREFIX}{request.marker}", timeout_min=minutes, cpus_per_task=self._cpus, gpus_per_node=gpus
        )
        if self._options:
            self._executor.update_parameters(slurm_additional_parameters=self._options)
        try:
            self._running[key] = self._executor.submit(judge_encoded, msgspec.json.encode(request))
            self._ended.pop(key, None)
        except self._submitit.core.utils.FailedJobError as error:
            reason = str(error).strip().splitlines()[-1]
            raise NoEngine(one_line(f"{reason}; correct --workers or --reserve")) from None

    def next(self) -> tuple[str, CellResult | str]:
        """The key of a cell that has ended, with its result, or why it was lost."""
        while True:
            for key, job in self._running.items():
                if job.done():
                    del self._running[key]
                    return key, self._result(job)
            for key in self._without_result():
                job = self._running.pop(key)
                return key, f"job {job.job_id} left the queue without a result"
            time.sleep(POLL_S)

    def close(self) -> None:
        """Cancels all jobs."""
        for job in self._running.values():
            job.cancel(check=False)

    def _without_result(self) -> list[str]:
        """Cells whose jobs ended some time ago, which submitit does not notice on a cluster without accounting."""
        now = time.monotonic()
        if now - self._looked >= QUEUE_S and (jobs := queue()) is not None:
            self._looked = now
            ended = {key for key, job in self._running.items() if str(job.job_id) not in jobs}
            self._ended = {key: self._ended.get(key, now) for key in ended}
        return [key for key, since in self._ended.items() if key in self._running and now - since > QUEUE_S]

    def _result(self, job: Any) -> CellResult | str:
        try:
            return msgspec.json.decode(job.result(), type=CellResult)
        except Exception as error:
            return one_line(f"{type(error).__name__}: {error}")


def queue() -> dict[str, str] | None:
    """The names of the user's jobs in the queue, by id; None if Slurm does not answer."""
    output = _output("squeue", "--me", "--noheader", "--format=%i %j")
    return None if output is None else dict(line.split(maxsplit=1) for line in output.splitlines())


def _output(*words: str) -> str | None:
    """The output of a command of Slurm, None if it fails."""
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=_COMMAND_S).stdout
    except (OSError, subprocess.SubprocessError):
        return None
