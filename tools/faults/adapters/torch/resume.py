"""Faults of checkpoints in PyTorch: what they contain, and what a load restores."""

from __future__ import annotations

from typing import Any

import torch

from frameworks.torch import TorchFramework
from frameworks.torch.core import streams
from frameworks.torch.training import checkpoint
from frameworks.torch.training.trainer import TorchTrainer
from tools.faults import fault


@fault("https://github.com/NVIDIA/apex/issues/480", "resume.bit-identical", "resume.load-has-no-side-effects")
class MomentsNotSaved(TorchFramework):
    """`Optimizer.state_dict` holds the settings without the moments."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        whole = torch.optim.Optimizer.state_dict
        torch.optim.Optimizer.state_dict = lambda self: whole(self) | {"state": {}}


@fault("https://github.com/mosaicml/composer/pull/1376", "resume.scaler-state")
class LoadedScalerIsDropped(TorchFramework):
    """The scaler's state is not loaded, so the run goes on with the initial scale."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        torch.amp.GradScaler.load_state_dict = lambda self, state: None


@fault("https://github.com/vllm-project/speculators/issues/1027", "resume.random-state")
class StreamRestarts(TorchFramework):
    """The random state is saved and not put back."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        streams.Stream.replace = lambda self, states: None


@fault("https://github.com/EleutherAI/gpt-neox/pull/308", "resume.mid-window")
class PartialWindowIsLost(TorchFramework):
    """A checkpoint inside a window leaves out the gradients that were accumulated so far."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        whole = checkpoint.snapshot

        def forgetful(trainer: TorchTrainer) -> dict[str, Any]:
            result = whole(trainer)
            return result | {checkpoint.LOOP: result[checkpoint.LOOP] | {"gradients": {}}}

        checkpoint.snapshot = forgetful
