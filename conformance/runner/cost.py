"""The cost of a run: its processor seconds in multiples of a fixed workload's, so that load on the machine cancels."""

import os
import resource
import threading
import time
import tomllib
from pathlib import Path

import numpy as np

from conformance.runner import machine
from conformance.runner.baselines import BASELINES
from frameworks.base.host import processor as processor_model

FILE = BASELINES / "costs.toml"
MORE = 1.05
"""Largest cost of a run in multiples of its committed cost."""


def processor_name() -> str:
    """Return the processor's name, and the kernels that its instruction sets allow: some makers name all alike."""
    return f"{processor_model()}, {machine.level(machine.instruction_sets())}"


def measure_child_time() -> float:
    """Return the processor seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Yardstick(threading.Thread):
    """Thread that runs a fixed workload of NumPy and Python about once a second, until `stop` returns its mean time.

    It works during the run and not after it, because busy processes slow each other down if they share a core's units.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self._seconds: list[float] = []
        self.start()

    def run(self) -> None:
        vector = np.random.default_rng(0).standard_normal(100_000)
        while not self._seconds or not self._ended.wait(1.0):
            start = time.thread_time()
            counts: dict[int, int] = {}
            for number in range(100_000):
                counts[number % 997] = counts.get(number % 997, 0) + number
            _ = np.sort(np.exp(-vector * vector))
            self._seconds.append(time.thread_time() - start)

    def stop(self) -> float:
        """Stop the thread; return the mean processor seconds of the workload."""
        self._ended.set()
        self.join()
        return sum(self._seconds) / len(self._seconds)


def limits(file: Path = FILE) -> tuple[str, dict[str, dict[str, float]]]:
    """Return the processor on which the committed costs were measured, and the costs by selection and framework."""
    content = tomllib.loads(file.read_text("utf-8"))
    return content.pop("processor"), content


def judge(framework: str, tests: str, cost: float, file: Path = FILE) -> tuple[str, bool]:
    """Return one line about the cost of a run, and whether the cost is too high.

    It is too high only in CI (if the variable CI is set) and on the processor of the file: another processor may be
    relatively faster for the framework or for the fixed workload.
    """
    processor, costs = limits(file)
    limit = costs.get(tests, {}).get(framework)
    text = f"cost: {cost:.0f} yardsticks of processor time"
    if limit is None or processor != processor_name():
        return text, False
    over = cost > MORE * limit
    text += f", {limit:.0f} in {file.name}"
    if over:
        text += f"; more than {MORE - 1:.0%} above it: make the tests cheaper, or edit the file and say why"
    return text, over and bool(os.environ.get("CI"))
