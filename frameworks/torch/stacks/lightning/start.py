"""What both modes of Lightning share: precisions, attempts, small modules, and what Lightning makes of requests."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch

from fixtures.recipe import FormatName, Recipe
from frameworks.contract import Attempt, Capability, FormatRequest
from frameworks.torch.core.devices import dtype_name
from frameworks.torch.core.settings import Probe, all_guarded

NAMES: Mapping[str, Any] = {
    "O0": "32-true",
    "O1-float16": "16-mixed",
    "O1-bfloat16": "bf16-mixed",
    "O3-float16": "16-true",
    "O3-bfloat16": "bf16-true",
}
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


def precision_of(
    recipe: Recipe, device: str, scaler: torch.amp.GradScaler | None, mixed: Any, scaled_float32: Any
) -> dict[str, Any]:
    """The argument of Lightning that chooses a recipe's precision.

    A scaler is handed to a plugin, because on a CPU Lightning makes none.

    Args:
        mixed: the class of plugins of mixed precision.
        scaled_float32: one without autocast.
    """
    if recipe.precision.level == "O0" and scaler is not None:
        return {"plugins": scaled_float32("16-mixed", device, scaler)}
    if recipe.precision.label == "O1-float16":
        own_scaler = torch.amp.GradScaler(device, enabled=False) if scaler is None else scaler
        return {"plugins": mixed("16-mixed", device, own_scaler)}
    return {"precision": NAMES[recipe.precision.label]}


def make_scaled_plugin(mixed: Any, device: str, **options: Any) -> Any:
    """A plugin of float16 autocast under a scaler with these arguments, of scale 8 if they name none."""
    return mixed("16-mixed", device, torch.amp.GradScaler(device, **{"init_scale": 8.0} | options))


def guard_attempts(probes: Mapping[Capability, Probe], device: str) -> dict[Capability, Attempt]:
    """Attempts by capability, which draw from no stream and warn of nothing."""
    return all_guarded(probes, device, partial(torch.random.fork_rng, []), without_warnings)


ASKED: dict[FormatName, Any] = {"float16": "16-mixed", "bfloat16": "bf16-mixed"}
_REPORTED = {"16-mixed": "float16", "bf16-mixed": "bfloat16", "32-true": "float32"}


def format_request(ran: torch.dtype, reported: str, warned: list[str]) -> FormatRequest:
    """What Lightning made of a request for mixed precision."""
    says_so = any("mixed" in text or "AMP" in text for text in warned)
    return FormatRequest(dtype_name(ran), _REPORTED[reported], warned=says_so)
