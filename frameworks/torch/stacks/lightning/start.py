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

_SMALL = (
    r".*`srun` command is available",
    r".*LeafSpec",
    r".*callbacks used to create",
    r".*does not have many workers",
    r".*log_every_n_steps",
    r".*on purpose",
)
"""What Lightning warns of in a small loop or next to Slurm, and what a newer PyTorch warns of in Lightning's code."""


@cache
def quiet() -> None:
    """Turns off information on devices and on runs, in the way of Lightning's guide to its console logging."""
    for name in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Ignores warnings that a small loop gives."""
    with warnings.catch_warnings():
        for message in _SMALL:
            warnings.filterwarnings("ignore", message=message)
        yield
