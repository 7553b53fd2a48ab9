"""Faults in what a checkpoint holds, and in the run that goes on from one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fixtures.arrays import Array
from frameworks.reference import checkpoint
from frameworks.reference.decisions import Arrays
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("https://github.com/NVIDIA-NeMo/RL/pull/4183", clause="resume.bit-identical", kind="real")
class LaterSavesRepeatTheMoments(ReferenceTrainer):
    """Every save after a run's first one writes the moments of the first; all else is of its own moment."""

    _moments: Arrays | None = None

    def save(self, path: Path) -> None:
        state = self.save_state()
        if self._moments is None:
            self._moments = {name: value for name, value in state.items() if name.startswith("slot.")}
        checkpoint.write(path, state | self._moments, self._identity())


@fault("https://github.com/cweniger/falcon/issues/115", clause="resume.bit-identical", kind="real")
class StatisticsBeginAgainAfterALoad(ReferenceTrainer):
    """The first batch after a load replaces the running statistics of batch norm instead of moving them."""

    _begun = True

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._begun, self._replaced = False, set[str]()

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        if not self._begun and not self._replaying and path not in self._replaced:
            self._replaced.add(path)
            momentum = 1.0
        super().update_running_statistics(path, mean, variance, count, momentum)


@fault("https://github.com/NVIDIA/warp/issues/1593", clause="resume.bit-identical", kind="real")
class LoadForgetsMomentsOfHalves(ReferenceTrainer):
    """After a load, the moments of parameters that the model stores in float16 are zeros."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        for values in self.slots.values():
            for name, value in values.items():
                if self.formats[name] == "float16":
                    values[name] = np.zeros_like(value)


@fault("", clause="resume.bit-identical", kind="invented")
class OlderWindowStaysInTheFile(ReferenceTrainer):
    """A save into a folder that holds an older one keeps the older one's open window where it has none itself."""

    def save(self, path: Path) -> None:
        state = self.save_state()
        try:
            older = checkpoint.read(path, self._identity(), state)
        except ValueError:
            older = {}
        left = {name: value for name, value in older.items() if name.startswith("window/")}
        checkpoint.write(path, left | state, self._identity())


@fault("", clause="resume.refusal-changes-nothing", kind="invented")
class RefusedLoadDropsTheWindow(ReferenceTrainer):
    """A load begins by emptying the accumulator, also where the checkpoint is then refused."""

    def restore(self, path: Path) -> None:
        self.empty_accumulator()
        super().restore(path)


@fault("", clause="master.model-is-cast-of-master", kind="invented")
class LoadCutsMastersOff(ReferenceTrainer):
    """A load makes bfloat16 weights of float32 masters by cutting their bits off instead of rounding them."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        for name, master in self.masters.items():
            if self.formats[name] == "bfloat16" and self.master_formats[name] == "float32":
                bits = np.ascontiguousarray(master, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
                self.values[name] = bits.view(np.float32).astype(np.float64)
