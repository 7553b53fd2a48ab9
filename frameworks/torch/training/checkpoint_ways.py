"""Other public calls for checkpoints: the state API of `torch.distributed.checkpoint`, and its files."""

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

_ALONE: dict[str, Any] = {"no_dist": True} if "no_dist" in signature(checkpoint.save).parameters else {}
"""Without a process group; PyTorch before 2.7 sees by itself that there is none."""


class ModelAndOptimizers:
    """A model and its optimizers as one part, with the state API's names of parameters."""

    def __init__(self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._model, self._optimizers = model, optimizers

    def state_dict(self) -> dict[str, Any]:
        """The state of both."""
        model, optimizers = get_state_dict(self._model, self._optimizers)
        return {"model": model, "optimizers": optimizers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what `state_dict` returned."""
        set_state_dict(
            self._model, self._optimizers, model_state_dict=state["model"], optim_state_dict=state["optimizers"]
        )


def with_state_api(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a run with model and optimizers as one, the others as they are."""
    optimizers = {name: part for name, part in parts.items() if name.startswith("optimizer")}
    others = {name: part for name, part in parts.items() if name != "model" and name not in optimizers}
    return {"model": ModelAndOptimizers(parts["model"], [*optimizers.values()]), **others}


def save_distributed(parts: Mapping[str, Any], folder: Path) -> None:
    """Writes parts into a folder of `torch.distributed.checkpoint`, without a process group."""
    checkpoint.save(dict(parts), checkpoint_id=folder, **_ALONE)


def load_distributed(parts: Mapping[str, Any], folder: Path) -> None:
    """Loads each part from such a folder.

    Raises:
        ValueError: a file or a part is missing or damaged.
    """
    try:
        checkpoint.load(dict(parts), checkpoint_id=folder, **_ALONE)
    except CheckpointException as error:  # no subclass of Exception
        raise ValueError(str(error)) from error
