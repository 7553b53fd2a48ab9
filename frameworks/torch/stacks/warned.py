"""Warnings of a library, by `warnings` and in its log."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


class _Records(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


@contextmanager
def watched() -> Iterator[list[str]]:
    """Texts of warnings and of log records from WARNING on, of all libraries, that occur within the context."""
    result: list[str] = []
    handler, names = _Records(result), ("", "transformers", "accelerate")
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
