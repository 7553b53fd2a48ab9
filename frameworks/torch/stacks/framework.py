"""Base of the modes that train by a library on top of PyTorch, and small runs fed by the library's data loader."""

import logging
import warnings
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib.metadata import version
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.models import scalar
from fixtures.recipe import Adam, Implementation, Precision, Recipe
from frameworks.base import BaseRankGroup, BaseTrainer
from frameworks.contract import (
    Attempt,
    Capability,
    DataRun,
    OpResult,
    PostTraining,
    RecomputeCase,
    RecomputeResult,
    RowOrder,
)
from frameworks.torch.core.settings import to_array
from frameworks.torch.declarations import TRAINING
from frameworks.torch.framework import STACKS, TorchFramework
from frameworks.torch.probes import attempts
from frameworks.torch.training import optimizers
from frameworks.torch.training.optimizers import IMPLEMENTATIONS
from frameworks.torch.training.trainer import TorchTrainer

_NOT_OF_TRAINING = frozenset({Capability.AUTOCAST_SCOPE, Capability.AUTOCAST_LISTS, Capability.TF32})
"""Parts of PyTorch that no library's training loop replaces."""
ROWS, STEPS, EPOCHS = 8, 2, 2
"""Rows of an epoch, micro-batches of a window and epochs of a run fed by a data loader."""


class StackFramework(TorchFramework):
    """A library's training loop.

    These modes offer no formats, operations, quantizers and ranks: those of PyTorch are judged in its own modes.

    Attributes:
        of_library: capabilities that the library adds to PyTorch.
    """

    of_library: frozenset[Capability] = frozenset()

    def version(self) -> str:
        """PyTorch's version with the library's in its local label, such as "2.13.0+cpu.accelerate.1.15.0"."""
        library = STACKS[self.mode].library
        own = str(torch.__version__)
        return f"{own}{'.' if '+' in own else '+'}{library}.{version(library)}"

    def environment(self) -> dict[str, str]:
        library = STACKS[self.mode].library
        return super().environment() | {library: version(library)}

    def refusals(self) -> Mapping[Capability, str]:
        of_training = (attempts(self.device, self.mode).keys() | self._choices.keys()) - _NOT_OF_TRAINING
        return {c: reason for c, reason in super().refusals().items() if c in of_training} | dict(
            self.library_refusals()
        )

    def library_refusals(self) -> Mapping[Capability, str]:
        """Capabilities of PyTorch that the library lacks, with reasons."""
        return {}

    def supported_capabilities(self) -> Collection[Capability]:
        return TRAINING | {Capability.PLAIN_LOOP} | self.of_library

    def attempts(self) -> Mapping[Capability, Attempt]:
        own = {c: attempt for c, attempt in attempts(self.device, self.mode).items() if c not in _NOT_OF_TRAINING}
        own |= {c: partial(self._steps_by, name) for c, name in self._choices.items()}
        return {**own, **self.library_attempts()}

    @property
    def takes_any_optimizer(self) -> bool:
        """True if the mode is judged with each implementation of an optimizer."""
        return True

    @property
    def _choices(self) -> Mapping[Capability, Implementation]:
        return optimizers.CHOICES if self.takes_any_optimizer else {}

    def _steps_by(self, name: Implementation) -> bool:
        """Returns whether the library steps an optimizer of this implementation, without warnings of so small a run."""
        with warnings.catch_warnings(action="ignore"):
            trainer = self.run(scalar(1.0), Recipe(Adam(0.5), implementation=name), None)
            assert isinstance(trainer, TorchTrainer)
            before = trainer.parameters()
            trainer.apply_gradients({parameter: np.ones_like(value) for parameter, value in before.items()})
        settings = trainer.steppers[0].optimizer.param_groups[0]
        moved = all((value < before[parameter]).all() for parameter, value in trainer.parameters().items())
        return moved and all(settings[key] is on for key, on in IMPLEMENTATIONS[name].items())

    def plain_trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> TorchTrainer:
        self.require_recipe(recipe)
        return self.bind(TorchTrainer(model, recipe, weights, self.device, TorchFramework.modes[0]))

    @abstractmethod
    def library_attempts(self) -> Mapping[Capability, Attempt]:
        """The library's own call for each capability that it lacks or may ignore, without this adapter's guards."""

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseTrainer:
        self.require_recipe(recipe)
        self.require_clipping(recipe)
        optimizers.require_implementation(model, recipe, self.device)
        return self.bind(self.run(model, recipe, weights))

    @abstractmethod
    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> BaseTrainer:
        """A run of a recipe that asks only for declared capabilities."""

    def rank_group(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseRankGroup:
        raise self.refusal(Capability.RANKS_REPLICATED)

    def rules(self) -> Mapping[type, Callable[[], Any]]:
        return {kind: make for kind, make in super().rules().items() if kind is not PostTraining}

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        raise self.refusal(Capability.AUTOCAST_SCOPE)

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        raise self.refusal(Capability.OPERATIONS)

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        raise self.refusal(Capability.RECOMPUTE_CASES)


class NumberedRows(Dataset[dict[str, torch.Tensor]]):
    """Rows with number i and a factor, which is random for the order "drawn" and else 1."""

    def __init__(self, order: RowOrder) -> None:
        self._drawn = order == "drawn"

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        factor = torch.rand(()) if self._drawn else torch.ones(())
        return {"number": torch.tensor(index), "factor": factor}


class Dropping(nn.Module):
    """A model whose loss is the sum of the weights that dropout keeps, times number + 1 and factor of the row.

    Attributes:
        numbers: numbers of the rows so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.numbers: list[int] = []

    def forward(self, number: torch.Tensor, factor: torch.Tensor) -> dict[str, Any]:
        self.numbers += number.tolist()
        masked = nn.functional.dropout(self.weight, 0.5, self.training)
        return {"loss": (masked * (number + 1) * factor).sum()}

    def since(self, rows: int) -> DataRun:
        """The part of the run after its first `rows` rows."""
        return DataRun(tuple(self.numbers[rows:]), to_array(self.weight))


def loader(order: RowOrder) -> DataLoader[dict[str, torch.Tensor]]:
    """The rows in micro-batches of one."""
    return DataLoader(NumberedRows(order), batch_size=1, shuffle=order != "in-order")


def train_twice(train: Callable[[str, bool], Dropping], windows: int) -> tuple[DataRun, DataRun]:
    """The uninterrupted run, which writes checkpoints, and one that is resumed after `windows` windows of it.

    Args:
        train: trains a model with checkpoints in a folder; if the second argument is true, resumes from there.
    """
    models = []
    with TemporaryDirectory() as folder:
        for resumes in (False, True):
            with torch.random.fork_rng():
                models.append(train(folder, resumes))
    return models[0].since(windows * STEPS), models[1].since(0)


class _Records(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


@contextmanager
def collect_warnings(*names: str) -> Iterator[list[str]]:
    """Texts of warnings, and of log records from WARNING on of these loggers, that occur within the context.

    Without names the loggers are those of all libraries.
    """
    result: list[str] = []
    handler, names = _Records(result), names or ("", "transformers", "accelerate")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in names:
            logging.getLogger(name).addHandler(handler)
        try:
            yield result
        finally:
            for name in names:
                logging.getLogger(name).removeHandler(handler)
            result += [str(warning.message) for warning in caught]
