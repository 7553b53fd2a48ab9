"""What both modes of Lightning share: names of precisions, and less logging."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import MappingProxyType
from typing import Any

NAMES: Mapping[str, Any] = MappingProxyType(
    {
        "O0": "32-true",
        "O1-float16": "16-mixed",
        "O1-bfloat16": "bf16-mixed",
        "O3-float16": "16-true",
        "O3-bfloat16": "bf16-true",
    }
)
"""Lightning's precisions by label."""


@cache
def quiet() -> None:
    """Turns off information on devices and on runs, in the way of Lightning's guide to its console logging."""
    for name in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Ignores what Lightning warns of in a small loop, and the warning of a newer PyTorch about Lightning's code."""
    with warnings.catch_warnings():
        for message in (r".*LeafSpec", r".*does not have many workers", r".*log_every_n_steps", r".*on purpose"):
            warnings.filterwarnings("ignore", message=message)
        yield
