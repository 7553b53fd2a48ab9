"""Faults of the state in which a recomputed forward pass runs: random streams, buffers, modes and precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from fixtures.layers import Layer
from fixtures.recipe import Precision
from frameworks.reference.core import scope
from frameworks.reference.core.network import Pass
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/pytorch/issues/190758", "recompute.replays-dropout")
class FreshDraws(ReferenceTrainer):
    """The recomputed forward draws numbers of its own and leaves the stream where it was."""

    @contextmanager
    def replay_random(self, draws: int) -> Iterator[None]:
        later, self.draws = self.draws, draws + 2**20
        yield
        self.draws = later


@fault("https://github.com/tensorflow/tensorflow/issues/30265", "recompute.random-stream-unmoved")
class StreamLeftAdvanced(ReferenceTrainer):
    """The masks are replayed, but the numbers of the recomputed forward count as drawn again."""

    @contextmanager
    def replay_random(self, draws: int) -> Iterator[None]:
        later, self.draws = self.draws, draws
        yield
        self.draws += later - draws


@fault("https://github.com/pytorch/pytorch/issues/190717", "recompute.nested")
class InnerStreamNotPutBack(ReferenceTrainer):
    """With segments inside segments, the recomputed forwards draw on from where the stream stands."""

    @contextmanager
    def replay_random(self, draws: int) -> Iterator[None]:
        nested = self.recipe.recompute is not None and self.recipe.recompute.depth > 1
        with nullcontext() if nested else super().replay_random(draws):
            yield


# buffers and modes


@fault("https://github.com/pytorch/pytorch/issues/96136", "recompute.statistics-once")
class StatisticsMoveTwice(ReferenceTrainer):
    """The recomputed forward moves the running statistics again."""

    @contextmanager
    def replay_buffers(self) -> Iterator[None]:
        yield


Parameters = Mapping[str, Tensor]


@fault("https://github.com/keras-team/keras/issues/21207", "recompute.evaluation-is-plain")
class TrainingFlagLost(ReferenceTrainer):
    """The wrapper of a recomputed segment loses the mode, so that evaluation runs as training does."""

    def _pass(self, parameters: Parameters, training: bool) -> Pass:
        return super()._pass(parameters, training or self.recipe.recompute is not None)


@fault("https://github.com/facebookresearch/fairscale/issues/1199", "recompute.replays-autocast")
class DefaultFormatReplayed(ReferenceTrainer):
    """The recomputed forward opens a scope of the same level in the default format, float16."""

    def replay_precision(self, former: scope.Scope) -> AbstractContextManager[None]:
        return scope.opened(scope.Scope(Precision(former.precision.level, "float16")))


@fault("https://github.com/PaddlePaddle/Paddle/pull/35927", "recompute.same-state")
class ReplayLeavesScopeOpen(ReferenceTrainer):
    """The precision scope that a recomputed forward opens stays open for the whole process."""

    @contextmanager
    def replay_precision(self, former: scope.Scope) -> Iterator[None]:
        scope.enter(former)
        yield


@fault("https://github.com/pytorch/pytorch/issues/148831", "recompute.replays-autocast")
class InputCastSkipped(ReferenceTrainer):
    """In the recomputed forward a segment's input is taken for float32, whatever format it came in."""

    class Uncast(Pass):
        """A pass over float32 inputs."""

        def layers(self, layers: tuple[tuple[str, Layer], ...], x: Tensor) -> Tensor:
            return super().layers(layers, Tensor(x.value, "float32", x.owned) if x.floating else x)

    def _pass(self, parameters: Parameters, training: bool) -> Pass:
        made = self.Uncast if self._replaying else Pass
        return made(self.ops, parameters, self, training)
