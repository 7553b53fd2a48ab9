"""Cells as jobs of Slurm, through submitit. Every node sees this checkout and the sweep's folder at the same paths."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conformance.sweep.engines.engine import NoEngine
from conformance.sweep.launching import judge_encoded
from conformance.sweep.requests import CellRequest, CellResult, decode_result
from results.record.files import one_line

POLL_S = 1.0
INSTALL_S = 3600.0
"""Added to a cell's limit for the installation and the repetitions."""


class SlurmEngine:
    """Jobs, one for each cell.

    Args:
        folder: for the files of the jobs.
        options: more options of sbatch, such as partition.
        work: judges an encoded request on a node.
        cluster: submitit's name of the executor; "local" runs jobs here.

    Raises:
        NoEngine: submitit is not installed, or there is no Slurm.
    """

    def __init__(
        self,
        folder: Path,
        cpus: int = 1,
        options: dict[str, str] | None = None,
        work: Callable[[bytes], bytes] = judge_encoded,
        cluster: str = "slurm",
    ) -> None:
        try:
            self._submitit: Any = importlib.import_module("submitit")
        except ImportError:
            raise NoEngine("submitit is not installed: pip install --group slurm") from None
        try:
            self._executor = self._submitit.AutoExecutor(folder=str(folder), cluster=cluster)
        except Exception as error:
            raise NoEngine(one_line(f"Slurm cannot be used ({error}); run where sbatch is")) from None
        self._cpus, self._work, self._options = cpus, work, dict(options or {})
        self._running: dict[str, Any] = {}

    def submit(self, key: str, request: CellRequest) -> None:
        """Queues a cell; one on a GPU asks for a GPU."""
        gpus = 0 if request.cell.get("device") == "cpu" else 1
        minutes = int((request.limit_s + INSTALL_S) / 60) + 1
        self._executor.update_parameters(
            name=f"conformance-{key}", timeout_min=minutes, cpus_per_task=self._cpus, gpus_per_node=gpus
        )
        if self._options:
            self._executor.update_parameters(slurm_additional_parameters=self._options)
        self._running[key] = self._executor.submit(self._work, request.encoded())

    def next(self) -> tuple[str, CellResult | str]:
        """The key of a cell that has ended, with its result, or why it was lost."""
        while True:
            for key, job in self._running.items():
                if job.done():
                    del self._running[key]
                    return key, self._result(job)
            time.sleep(POLL_S)

    def close(self) -> None:
        """Cancels all jobs."""
        for job in self._running.values():
            job.cancel(check=False)

    def _result(self, job: Any) -> CellResult | str:
        try:
            return decode_result(job.result())
        except Exception as error:
            return one_line(f"{type(error).__name__}: {error}")
