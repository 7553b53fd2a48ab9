"""Faults of checkpoints in Paddle: what they contain, and what a load restores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paddle
from paddle.amp.grad_scaler import AmpScaler

from frameworks.paddle import PaddleFramework
from frameworks.paddle.training import checkpoint
from frameworks.paddle.training.trainer import DygraphTrainer
from tools.faults import fault


@fault("https://github.com/NVIDIA/apex/issues/480", "resume.bit-identical")
class MomentsNotSaved(PaddleFramework):
    """`Optimizer.state_dict` leaves out the moments."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        whole = paddle.optimizer.Optimizer.state_dict
        paddle.optimizer.Optimizer.state_dict = lambda self: {
            name: value for name, value in whole(self).items() if name == "LR_Scheduler"
        }


@fault("https://github.com/huggingface/transformers/pull/11663", "resume.scaler-state", mode="dygraph-forced-scaler")
class CountersNotLoaded(PaddleFramework):
    """`GradScaler.load_state_dict` restores the scale and counts finite updates from 0."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        load = AmpScaler.load_state_dict
        AmpScaler.load_state_dict = lambda self, state: load(self, state | {"incr_count": 0})


@fault("https://github.com/vllm-project/speculators/issues/1027", "resume.random-state")
class StreamRestarts(PaddleFramework):
    """The generator's state is not loaded, so a resumed run starts its stream again."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        restore = checkpoint.restore

        def forgetful(trainer: DygraphTrainer, folder: Path) -> None:
            state = trainer.stream.state
            restore(trainer, folder)
            trainer.stream.state = state

        checkpoint.restore = forgetful
