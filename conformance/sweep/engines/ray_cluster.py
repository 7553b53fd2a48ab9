"""Cells on an existing Ray cluster: one task for each. Every node has this checkout at the same path, and uv or pip.

Ray queues and places; it retries nothing, and prepares no environment. A task starts the cell's process and waits. That
process has the time limit, and ends with the task's worker.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from conformance.sweep.engines import NoEngine
from conformance.sweep.launching import judge_encoded
from conformance.sweep.requests import CellRequest, CellResult
from results.record.files import one_line


class RayEngine:
    """Tasks of Ray Core.

    Args:
        address: of the cluster, such as "auto" or HOST:PORT.
        cpus: processors that a cell reserves.
        resources: custom resources that a cell reserves.
        work: judges an encoded request on a node.
        wait_for_nodes: whether a cell may wait for a node that the cluster does not have yet.

    Raises:
        NoEngine: Ray is not installed, or the cluster does not answer.
    """

    def __init__(
        self,
        address: str,
        cpus: float = 1.0,
        resources: Mapping[str, float] | None = None,
        work: Callable[[bytes], bytes] = judge_encoded,
        wait_for_nodes: bool = False,
    ) -> None:
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError:
            raise NoEngine("Ray is not installed: pip install ray") from None
        try:
            self._ray.init(address=address, log_to_driver=False, configure_logging=False)
        except Exception as error:
            raise NoEngine(
                one_line(f"the Ray cluster {address} does not answer ({error}); start it, or correct --address")
            ) from None
        remote = self._ray.remote(max_retries=0)
        self._work = remote(work)
        self._cpus, self._resources = cpus, dict(resources or {})
        self._wait_for_nodes = wait_for_nodes
        self._running: dict[Any, str] = {}

    def submit(self, key: str, request: CellRequest) -> None:
        """Queues a cell; one on a GPU reserves a GPU."""
        gpus = 0 if request.cell.device == "cpu" else 1
        reserved = {"CPU": self._cpus, "GPU": gpus, **self._resources}
        if not (self._wait_for_nodes or self._fits(reserved)):
            wanted = ", ".join(f"{name} {amount:g}" for name, amount in reserved.items() if amount)
            raise NoEngine(f"no node of the Ray cluster has {wanted}: add one, or use --wait-for-nodes")
        task = self._work.options(num_cpus=self._cpus, num_gpus=gpus, resources=self._resources, name=key)
        self._running[task.remote(msgspec.json.encode(request))] = key

    def _fits(self, reserved: Mapping[str, float]) -> bool:
        """Whether a node has these resources, free or not; Ray queues a task without end that fits on none."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return any(all(node.get(name, 0) >= amount for name, amount in reserved.items()) for node in nodes)

    def next(self) -> tuple[str, CellResult | str]:
        """The key of a cell that has ended, with its result, or why it was lost."""
        while True:
            done, _ = self._ray.wait([*self._running], num_returns=1, timeout=1.0)
            if done:
                break
        (task,) = done
        key = self._running.pop(task)
        try:
            return key, msgspec.json.decode(self._ray.get(task), type=CellResult)
        except self._ray.exceptions.RayError as error:
            return key, one_line(f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")

    def close(self) -> None:
        """Ends all cells: a worker that is killed takes its cell with it."""
        for task in self._running:
            self._ray.cancel(task, force=True)
        self._ray.shutdown()
