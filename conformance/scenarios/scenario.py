"""A scenario: one model with its data, and the recipes to compare."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Adam, OffloadedKind, Recipe
from frameworks.contract import Capability

OFFLOADED: tuple[OffloadedKind, ...] = get_args(OffloadedKind)
"""Kinds that can be offloaded."""

SAVED = "saved bytes"
"""Name of the bytes saved between forward and backward."""

MODEL = "model bytes"
"""Name of the bytes of a model for prediction."""

REDUCED = "gradients reduced a window"
"""Name of the number of gradients that a rank reduces in a window."""

SECONDS = "seconds a round"
"""Name of the time of a round."""


@dataclass(frozen=True)
class Side:
    """One recipe of a scenario.

    Attributes:
        label: short name, such as "mixed float16".
        micro: samples in a micro-batch; 0 takes a round's whole batch.
        beside: the side with which final parameters are compared; "" for the scenario's first side.
        equal: the parameters of both sides end with the same bits, unless a compiler may round them differently.
        whole: drops the micro-batches at an epoch's end that fill no window; otherwise they form a shorter window.
    """

    label: str
    recipe: Recipe
    micro: int = 0
    beside: str = ""
    equal: bool = False
    whole: bool = False

    @property
    def ranks(self) -> int:
        """Number of ranks, 0 for none."""
        return 0 if self.recipe.ranks is None else self.recipe.ranks.count

    def windows(self, batch: Batch) -> tuple[Window, ...]:
        """The windows of a round's batch."""
        size, k = self.micro or len(batch), self.recipe.accumulation
        parts = [batch.part(start, min(start + size, len(batch))) for start in range(0, len(batch), size)]
        windows = [tuple(parts[start : start + k]) for start in range(0, len(parts), k)]
        return tuple(window for window in windows if len(window) == k or not self.whole)

    def needs(self, batch: Batch) -> tuple[Capability, ...]:
        """Additional capability for the windows of an epoch's last batch."""
        cut = any(len(window) < self.recipe.accumulation for window in self.windows(batch))
        return (Capability.PARTIAL_WINDOW,) if cut else ()


@dataclass(frozen=True)
class QuantizedSide(Side):
    """The quantized model of the side `beside`, or of the first one, after its training; it is not trained itself.

    Attributes:
        technique: one of `PostTraining`, calibrated with samples of the first round; "" converts a QAT model.
    """

    technique: str = ""


@dataclass(frozen=True)
class Quality:
    """The quality of a run on test data.

    Attributes:
        of: function of the outputs by head and the test batch.
        constant: quality of the best answer that ignores the inputs, on the test batch.
        rising: whether higher is better.
    """

    label: str
    of: Callable[[Mapping[str, Array], Batch], float]
    constant: Callable[[Batch], float]
    rising: bool


@dataclass(frozen=True)
class Setting:
    """A model with its data; `about` names the origin of data and initial weights."""

    model: Model
    train: Batch
    test: Batch
    about: str


@dataclass(frozen=True)
class Scenario:
    """Sides that start from the same weights and train on the same batches in the same order.

    Attributes:
        title: the comparison, in one sentence.
        source: the publication or guide.
        setting: makes model and data, the same in every process.
        sides: the first one, which has no ranks if another one has, is the baseline.
        batch: samples of a round, which every side trains on before the next round begins.
        epochs: how often the training data are gone through, as documented.
        learns_in: number of rounds it takes to learn; shorter runs are not judged by their quality.
        shorter: rounds by device or mode ("cpu", "emulated") where the documented number takes too long.
        modes: the mode by framework where it is not its first one.
        only: why other frameworks than those of `modes` have no part in it; "" if they have.
        published: the document's own figures by side and quantity (a row of the table).
    """

    name: str
    title: str
    source: str
    setting: Callable[[], Setting]
    sides: tuple[Side, ...]
    batch: int
    epochs: int
    learns_in: int
    quality: Quality
    shorter: Mapping[str, int] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    only: str = ""
    published: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def shows_resident_bytes(self) -> bool:
        """Whether it measures resident bytes between updates, and not only saved activations."""
        return any(side.ranks or side.recipe.offload is not None or _eight_bit(side.recipe) for side in self.sides)

    @property
    def quantized(self) -> tuple[QuantizedSide, ...]:
        """The sides that quantize another side's model after its training."""
        return tuple(side for side in self.sides if isinstance(side, QuantizedSide))

    @property
    def stretches(self) -> tuple[tuple[Side, ...], ...]:
        """Sides to train, in stretches, each of which repeats the first side.

        A process has one number of ranks at a time, so sides with another number form another stretch.
        """
        first, *others = (side for side in self.sides if not isinstance(side, QuantizedSide))
        counts = dict.fromkeys(side.ranks for side in others) or {0: None}
        return tuple((first, *(side for side in others if side.ranks == count)) for count in counts)

    @property
    def clause(self) -> str:
        """The scenario's name in a record."""
        return f"scenario.{self.name}"

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the sides."""
        return tuple(side.label for side in self.sides)

    def base(self, side: Side) -> str:
        """Name of the side that a side is compared with."""
        return side.beside or self.sides[0].label

    def rounds(self, setting: Setting) -> int:
        """The number of rounds of the document's epochs."""
        return self.epochs * -(-len(setting.train) // self.batch)

    def rounds_on(self, device: str, mode: str, setting: Setting) -> int:
        """The number of rounds to train in a mode on a device."""
        return min(self.rounds(setting), *(self.shorter.get(name, self.rounds(setting)) for name in (device, mode)))

    def fingerprint(self, side: Side, setting: Setting, rounds: int) -> str:
        """Hash of everything that determines a side's numbers, except the framework and the suite's code."""
        settings = (setting.model.layers, setting.model.losses, side, self.batch, rounds, setting.about)
        digest = hashlib.sha256(repr(settings).encode())
        for batch in (setting.train, setting.test):
            for array in (batch.inputs, *batch.targets.values()):
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]


def _eight_bit(recipe: Recipe) -> bool:
    return isinstance(recipe.optimizer, Adam) and recipe.optimizer.state_bits == 8


def rank_bytes(kind: str) -> str:
    """Name of a rank's resident bytes of a kind ("parameter", "gradient", "optimizer")."""
    return f"{kind} bytes"


def offloaded_bytes(kind: str) -> str:
    """Name of the offloaded bytes of a kind; for activations, of the bytes offloaded in an update."""
    return f"{kind.removesuffix('s')} bytes away"


def here_bytes(kind: str) -> str:
    """Name of the resident bytes of an offloaded kind in a run without offload."""
    return SAVED if kind == "activations" else rank_bytes(kind.removesuffix("s"))


def share_of(quantity: str, base: str) -> str:
    """Name of a quantity as a share of the side `base`."""
    return f"{quantity} ÷ {base}'s"


def accuracy(position: int | None = None) -> Quality:
    """Accuracy of the head "output": the share of labels equal to the largest output, at one position if given."""

    def select(values: Array) -> Array:
        return values if position is None else values[:, position]

    def share(outputs: Mapping[str, Array], test: Batch) -> float:
        answers = select(outputs["output"]).astype(np.float64).argmax(axis=-1)
        return float(np.mean(answers == select(test.targets["output"])))

    def commonest(test: Batch) -> float:
        labels = select(test.targets["output"])
        return float(np.bincount(labels).max() / labels.size)

    return Quality("accuracy", share, commonest, rising=True)


def squared_error() -> Quality:
    """The squared error, averaged over the samples and summed over the heads."""

    def error(outputs: Mapping[str, Array], test: Batch) -> float:
        return float(sum(np.mean((outputs[name] - target) ** 2) for name, target in test.targets.items()))

    def spread(test: Batch) -> float:
        return float(sum(np.var(target) for target in test.targets.values()))

    return Quality("squared error", error, spread, rising=False)
