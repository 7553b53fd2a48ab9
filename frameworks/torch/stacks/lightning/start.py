"""What both modes of Lightning share: names and plugins of precisions, attempts, and less logging."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch

from fixtures.recipe import Recipe
from frameworks.contract import Attempt, Capability
from frameworks.torch.core.guards import Probe, all_guarded

NAMES: Mapping[str, Any] = {
    "O0": "32-true",
    "O1-float16": "16-mixed",
    "O1-bfloat16": "bf16-mixed",
    "O3-float16": "16-true",
    "O3-bfloat16": "bf16-true",
}
"""Lightning's precisions by label."""

BARE: Mapping[str, Any] = {
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
"""Arguments of a Trainer without logger, progress bar, summary, and checkpoints in the working folder."""

_SMALL = (
    r".*`srun` command is available",
    r".*LeafSpec",
    r".*callbacks used to create",
    r".*does not have many workers",
    r".*log_every_n_steps",
    r".*on purpose",
)
"""What Lightning warns of in a small loop or next to Slurm, and what a newer PyTorch warns of in Lightning's code."""

Train = Callable[..., tuple[torch.Tensor, list[torch.dtype]]]
"""`train(device, *factors, **given)` makes an update of two weights of 1.0 under SGD of rate 0.5 by each factor, with
these arguments of Lightning, and returns the weights and the formats of their products with a matrix."""


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


def scaled(mixed: Any, device: str, **given: Any) -> Any:
    """A plugin of float16 autocast under a scaler with these arguments, of scale 8 if they name none."""
    return mixed("16-mixed", device, torch.amp.GradScaler(device, **{"init_scale": 8.0} | given))


def is_at(weight: torch.Tensor, value: float) -> bool:
    """Whether all weights have this value."""
    return bool((weight == value).all())


def attempts(device: str, train: Train, mixed: Any, own: Mapping[Capability, Probe]) -> dict[Capability, Attempt]:
    """Attempts by capability, those of precision and scaling and a mode's own.

    Args:
        mixed: the class of plugins of mixed precision.
    """
    shared = {
        Capability.O1_FLOAT16: partial(_mixed, train, mixed, torch.float16),
        Capability.O1_BFLOAT16: partial(_mixed, train, mixed, torch.bfloat16),
        Capability.O3_FLOAT16: partial(_true, train, torch.float16),
        Capability.O3_BFLOAT16: partial(_true, train, torch.bfloat16),
        Capability.DYNAMIC_SCALING: partial(_dynamic_scaling, train, mixed),
        Capability.STATIC_SCALING: partial(_static_scaling, train, mixed),
    }
    return all_guarded({**shared, **own}, device, partial(torch.random.fork_rng, []), without_warnings)


def _mixed(train: Train, mixed: Any, dtype: torch.dtype, device: str) -> bool:
    given = {"plugins": scaled(mixed, device)} if dtype == torch.float16 else {"precision": "bf16-mixed"}
    weight, formats = train(device, 1.0, **given)
    return formats == [dtype] and weight.dtype == torch.float32


def _true(train: Train, dtype: torch.dtype, device: str) -> bool:
    weight, _ = train(device, 1.0, precision="16-true" if dtype == torch.float16 else "bf16-true")
    return weight.dtype == dtype and is_at(weight, 0.5)


def _dynamic_scaling(train: Train, mixed: Any, device: str) -> bool:
    plugin = scaled(mixed, device)
    weight, _ = train(device, float("inf"), 1.0, plugins=plugin)
    return is_at(weight, 0.5) and plugin.scaler.get_scale() == 4.0


def _static_scaling(train: Train, mixed: Any, device: str) -> bool:
    """Whether an overflow leaves a scale that is never to grow as it was."""
    plugin = scaled(mixed, device, growth_interval=2**31 - 1)
    train(device, float("inf"), plugins=plugin)
    return bool(plugin.scaler.get_scale() == 8.0)
