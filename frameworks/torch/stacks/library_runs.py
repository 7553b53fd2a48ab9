"""Runs that a library's own data loader feeds: numbered rows, a small model with dropout, and warnings."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from frameworks.contract import DataRun, RowOrder
from frameworks.torch.core.arrays import to_array

ROWS, STEPS, EPOCHS = 8, 2, 2


class NumberedRows(Dataset[dict[str, torch.Tensor]]):
    """Row i has the number i, and with `drawn` a random factor."""

    def __init__(self, order: RowOrder) -> None:
        self._drawn = order == "drawn"

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        factor = torch.rand(()) if self._drawn else torch.ones(())
        return {"number": torch.tensor(index), "factor": factor}


class Dropping(nn.Module):
    """Sums weights that dropout keeps, times the row; it takes down the numbers that it gets.

    Attributes:
        numbers: of the rows so far.
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
        """The run from its row of this number on."""
        return DataRun(tuple(self.numbers[rows:]), to_array(self.weight))


def loader(order: RowOrder) -> DataLoader[dict[str, torch.Tensor]]:
    """The rows, one a micro-batch."""
    return DataLoader(NumberedRows(order), batch_size=1, shuffle=order != "in-order")


class _Records(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


@contextmanager
def watched(*names: str) -> Iterator[list[str]]:
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
            result += [str(each.message) for each in caught]
