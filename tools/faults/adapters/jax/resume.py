"""Faults of checkpoints in JAX: what they contain, and what a load restores."""

from __future__ import annotations

from typing import Any

from frameworks.jax import JaxFramework
from frameworks.jax.training import checkpoint
from frameworks.jax.training.trainer import JaxTrainer
from tools.faults import fault


@fault("https://github.com/NVIDIA/apex/issues/480", "resume.bit-identical", "resume.load-has-no-side-effects")
class MomentsNotLoaded(JaxFramework):
    """The optimizer's state stays as it was when a checkpoint is loaded."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        restore = JaxTrainer.restore

        def partial_restore(self: JaxTrainer, path: Any) -> None:
            before = self.train_state.opt_state
            restore(self, path)
            self.train_state = self.train_state.replace(opt_state=before)

        JaxTrainer.restore = partial_restore


@fault("https://github.com/mosaicml/composer/pull/1376", "resume.scaler-state")
class LoadedScalerIsDropped(JaxFramework):
    """The loss scale is not loaded, so the run goes on with the initial one."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        checkpoint.scaler.with_state = lambda scale, state, device: scale


@fault("https://github.com/vllm-project/speculators/issues/1027", "resume.random-state")
class KeyRestarts(JaxFramework):
    """The key is saved and not put back."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        restore = JaxTrainer.restore

        def keeping(self: JaxTrainer, path: Any) -> None:
            key = self.moved.key
            restore(self, path)
            self.moved = self.moved._replace(key=key)

        JaxTrainer.restore = keeping
