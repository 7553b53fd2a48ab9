"""Faults of checkpoints in TensorFlow and Keras: what they contain, and what a load restores."""

from __future__ import annotations

from typing import Any

from frameworks.tf import TensorFlowFramework
from frameworks.tf.training import checkpoint
from tools.faults import fault


@fault("https://github.com/NVIDIA/apex/issues/480", "resume.scaler-state")
class OptimizerNotSaved(TensorFlowFramework):
    """The checkpoint holds the model without the optimizer, its moments and its loss scale."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        whole = checkpoint._parts
        checkpoint._parts = lambda *given: whole(*given) | {"optimizer": {}}


@fault("https://github.com/vllm-project/speculators/issues/1027", "resume.random-state")
class SeedsNotSaved(TensorFlowFramework):
    """The checkpoint leaves out the seed generators of the dropout layers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        whole = checkpoint._parts
        checkpoint._parts = lambda *given: whole(*given) | {"seeds": {}}
