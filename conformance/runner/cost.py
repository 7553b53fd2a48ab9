"""What a run costs: its processor seconds in multiples of a yardstick, which a busy machine does not move."""

import os
import resource
import threading
import time
import tomllib
from pathlib import Path

import numpy as np

from conformance.runner.baselines import BASELINES
from frameworks.base.shipped import processor as processor_model

FILE = BASELINES / "costs.toml"
MORE = 1.05
"""How many times as much as the file says a run may cost."""


def measure_child_time() -> float:
    """Processor seconds of the processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Yardstick(threading.Thread):
    """A fixed workload of NumPy and Python during a run, about once a second, until `stop` returns its mean.

    During the run, and not after it, for two busy processes slow each other where two cores share one unit.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self._seconds: list[float] = []
        self.start()

    def run(self) -> None:
        vector = np.random.default_rng(0).standard_normal(100_000)
        while not self._seconds or not self._ended.wait(1.0):
            begun = time.thread_time()
            counts: dict[int, int] = {}
            for number in range(100_000):
                counts[number % 997] = counts.get(number % 997, 0) + number
            _ = np.sort(np.exp(-vector * vector))
            self._seconds.append(time.thread_time() - begun)

    def stop(self) -> float:
        """Seconds of the workload on a processor: the mean of its repetitions."""
        self._ended.set()
        self.join()
        return sum(self._seconds) / len(self._seconds)


def limits(file: Path = FILE) -> tuple[str, dict[str, dict[str, float]]]:
    """The processor on which the committed costs were measured, and the costs by selection and framework."""
    content = tomllib.loads(file.read_text("utf-8"))
    return content.pop("processor"), content


def judge(framework: str, tests: str, cost: float, file: Path = FILE) -> tuple[str, bool]:
    """One line about the cost of a run, and whether it is too much.

    It is too much only in CI (where the variable CI is set) and on the processor of the file, for others may favour the
    framework or the yardstick.
    """
    processor, costs = limits(file)
    limit = costs.get(tests, {}).get(framework)
    text = f"cost: {cost:.0f} yardsticks of processor time"
    if limit is None or processor != processor_model():
        return text, False
    over = cost > MORE * limit
    text += f", {limit:.0f} in {file.name}"
    if over:
        text += f"; more than {MORE - 1:.0%} above it: make the tests cheaper, or edit the file and say why"
    return text, over and bool(os.environ.get("CI"))
