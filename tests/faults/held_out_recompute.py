"""Held-out faults of recompute: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch
from frameworks.contract import RecomputeCase, RecomputeResult
from frameworks.reference import ReferenceFramework
from frameworks.reference.decisions import Arrays
from frameworks.reference.forward import Moment
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.faults import fault


@fault(
    "https://github.com/pytorch/pytorch/issues/37874",
    component="containers",
    clauses=("recompute.failure-leaves-no-trace",),
)
class WedgedAfterFailure(ReferenceFramework):
    """The mark that a recomputation is under way is not taken back when it fails, and every later one in the process is
    refused."""

    under_way = False

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        kind = type(self)
        if kind.under_way:
            raise RuntimeError("a recomputation is under way already")
        kind.under_way = True
        result = super().recompute(case, x, w, variant)
        kind.under_way = False
        return result


@fault("", component="memory", clauses=("recompute.same-state",))
class ReplayOfFirstMicroBatch(ReferenceTrainer):
    """The state of the random stream is noted once a window: in later micro-batches the recomputed forward pass draws
    the masks of the first one."""

    _first: int | None = None
    _begun = 0

    def accumulate(self, batch: Batch, items: int) -> float:
        self._begun = self.draws
        if self._first is None or not self.window.micro_batches:
            self._first = self.draws
        return super().accumulate(batch, items)

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        first = self._begun if self._first is None else self._first
        return super().recompute_segment(replace(moment, draws=moment.draws - self._begun + first))


@fault("", component="memory", clauses=("recompute.same-state",))
class StreamReplayedOnce(ReferenceTrainer):
    """A segment's random state is given up by its first recomputation; one for a second loss draws other masks."""

    replayed: ClassVar[list[Moment]] = []

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        if any(moment is known for known in self.replayed):
            return super().recompute_segment(Moment(self.draws, moment.scope))
        self.replayed[:] = [*self.replayed[-31:], moment]
        return super().recompute_segment(moment)


@fault("", component="gradients", clauses=("recompute.same-state",))
class NewRunSeedsAll(ReferenceTrainer):
    """Making a run seeds the random stream of the process: the other runs begin theirs again."""

    made: ClassVar[list[int]] = [0]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.made[0] += 1
        self.seeded = self.made[0]

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        if self.seeded != self.made[0]:
            self.draws, self.seeded = 0, self.made[0]
        return super().draw_mask(shape, rate)


@fault("", component="random stream", clauses=("recompute.same-state",))
class StreamOfTheWindow(ReferenceTrainer):
    """The state of the random stream that recomputation goes back to is noted once a window, not once a micro-batch."""

    here = start = 0

    def accumulate(self, batch, items):
        self.here = self.draws
        if not self.window.micro_batches:
            self.start = self.draws
        return super().accumulate(batch, items)

    def replay_random(self, draws):
        return super().replay_random(draws if draws < self.here else draws - self.here + self.start)


@fault("https://github.com/modelscope/ms-swift/pull/10142", component="gradients", clauses=("recompute.same-state",))
class SecondSegmentUntrained(ReferenceTrainer):
    """Whether a segment is trained is asked of the first one alone: if that has no parameter, those of the second
    segment, whose input needs no gradient either, get none.
    """

    def _pulled(self, pullbacks):
        gradients = super()._pulled(pullbacks)
        if self.recipe.recompute is None or len(self.segments) < 2:
            return gradients
        first, second = (tuple(f"{path}." for path, _ in layers) for layers in self.segments[:2])
        if any(name.startswith(first) for name in self.values):
            return gradients
        return {name: g for name, g in gradients.items() if not name.startswith(second)}


@fault("", component="memory", clauses=("recompute.same-state",))
class SecondLossDrawsAnew(ReferenceTrainer):
    """Of two losses that are differentiated one after the other, the second replays segments with masks of its own."""

    replayed: tuple[Moment, ...] = ()

    def accumulate(self, batch: Batch, items: int) -> float:
        self.replayed = ()
        return super().accumulate(batch, items)

    def recompute_segment(self, moment: Moment) -> Any:
        again = any(moment is other for other in self.replayed)
        self.replayed += (moment,)
        return super().recompute_segment(replace(moment, draws=self.draws) if again else moment)


@fault("", component="gradients", clauses=("recompute.same-state",))
class RunsShareOneStream(ReferenceTrainer):
    """All runs of a process draw dropout from one stream, which making a run sets back to its start."""

    place: ClassVar[list[int]] = [0]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.place[0] = 0

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        if self._replaying or self.ops.tape is not None:
            return super().draw_mask(shape, rate)
        self.draws = self.place[0]
        mask = super().draw_mask(shape, rate)
        self.place[0] = self.draws
        return mask

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.place[0] = self.draws


@fault("https://github.com/pytorch/pytorch/issues/198333", component="gradients", clauses=("recompute.same-state",))
class ReplayRepeatsMasks(ReferenceTrainer):
    """In a recomputed pass over values with more than two axes, each four neighbours share one draw of dropout."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        mask = super().draw_mask(shape, rate)
        if self._replaying and len(shape) > 2:
            return np.repeat(mask[..., ::4], 4, axis=-1)[..., : shape[-1]]
        return mask


@fault("", component="memory", clauses=("recompute.same-state",))
class ReplayedOnlyOnce(ReferenceTrainer):
    """The random state that a segment kept is used up by its first replay: the backward pass of a second loss, which
    runs the segment once more, draws new masks."""

    used: tuple[Moment, ...] = ()

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        if any(moment is other for other in self.used):
            moment = Moment(self.draws, moment.scope)
        self.used = (*self.used[-63:], moment)
        return super().recompute_segment(moment)


@fault("", component="random stream", clauses=("recompute.same-state",))
class ReplayBeginsWithTheWindow(ReferenceTrainer):
    """Later micro-batches of a window replay the masks of its first one; the forward passes draw their own."""

    def _backward(self, batch: Any, items: int) -> Any:
        self._begun = self.draws
        if not self.window.micro_batches:
            self.window.first_draw = self.draws  # type: ignore[attr-defined]
        return super()._backward(batch, items)

    def replay_random(self, draws: int) -> AbstractContextManager[None]:
        first = getattr(self.window, "first_draw", self._begun)
        return super().replay_random(draws - self._begun + first)


@fault("", component="memory", clauses=("recompute.replays-dropout",))
class MomentIsSpent(ReferenceTrainer):
    """What a forward pass found is kept for one replay: of two losses' backward passes the second draws new masks."""

    def _backward(self, batch: Any, items: int) -> Any:
        self._spent: list[Any] = []
        return super()._backward(batch, items)

    def recompute_segment(self, moment: Any) -> AbstractContextManager[Any]:
        if any(moment is spent for spent in self._spent):
            return super().recompute_segment(type(moment)(self.draws, moment.scope))
        self._spent.append(moment)
        return super().recompute_segment(moment)


@fault("", component="random stream", clauses=("recompute.same-state",))
class ReplaysFirstMicroBatch(ReferenceTrainer):
    """The random state for recomputation is noted once a window: later micro-batches replay the first one's masks."""

    _begun = 0
    _since = 0

    def accumulate(self, batch: Batch, items: int) -> float:
        if not self.window.micro_batches:
            self._begun = self.draws
        self._since = self.draws - self._begun
        return super().accumulate(batch, items)

    def replay_random(self, draws: int) -> AbstractContextManager[None]:
        return super().replay_random(draws - self._since)


@fault("", component="gradients", clauses=("recompute.same-state",))
class InnerReplaysOuter(ReferenceTrainer):
    """In nested recomputation the inner parts replay the random state from the beginning of the outer segment."""

    _outer = 0
    _starts: dict[int, int] | None = None

    def _recomputed(
        self, layers: Any, parameters: Mapping[str, Tensor], x: Tensor, depth: int, index: int | None = None
    ) -> Tensor:
        if index is not None:
            self._outer = self.draws
        else:
            self._starts = {**(self._starts or {}), self.draws: self._outer}
        return super()._recomputed(layers, parameters, x, depth, index)

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        self._outer = (self._starts or {}).get(moment.draws, moment.draws)
        return super().recompute_segment(Moment(self._outer, moment.scope))


@fault("", component="memory", clauses=("recompute.same-state",))
class SecondRerunDrawsAnew(ReferenceTrainer):
    """Where a second loss has a backward pass of its own, the segments that it recomputes draw new dropout masks and
    move the random stream on."""

    _rerun: tuple[Moment, ...] = ()

    def run(self, parameters: Mapping[str, Tensor], batch: Batch, inputs: Any = None) -> dict[str, Tensor]:
        self._rerun = ()
        return super().run(parameters, batch, inputs)

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        if not any(known is moment for known in self._rerun):
            self._rerun = (*self._rerun, moment)
            return super().recompute_segment(moment)
        stack = ExitStack()
        stack.enter_context(self.replay_buffers())
        stack.enter_context(self.replay_precision(moment.scope))
        return stack


@fault("", component="memory", clauses=("recompute.same-state",))
class StreamIsReplayedOnce(ReferenceTrainer):
    """A recomputed segment replays its dropout masks once in a pass.

    Where losses have a backward pass each, a segment that is run again for the second one draws new masks instead, and
    the random stream moves on by them.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.replayed: list[Moment] = []

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        self.replayed = []
        return super().passed(batch, items)

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        if not any(known is moment for known in self.replayed):
            self.replayed.append(moment)
            return super().recompute_segment(moment)
        stack = ExitStack()
        stack.enter_context(self.replay_buffers())
        stack.enter_context(self.replay_precision(moment.scope))
        return stack


@fault("", component="memory", clauses=("recompute.same-state",))
class SecondBackwardDrawsNewMasks(ReferenceTrainer):
    """A recomputed segment gives its random state back to the first backward pass through it alone: where a second loss
    is differentiated by itself, its backward pass draws new dropout masks from the stream as it then is."""

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        self.replayed: list[Moment] = []
        return super().passed(batch, items)

    @contextmanager
    def _not_random(self, moment: Moment) -> Iterator[None]:
        with self.replay_buffers(), self.replay_precision(moment.scope):
            yield

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[object]:
        if any(each is moment for each in self.replayed):
            return self._not_random(moment)
        self.replayed.append(moment)
        return super().recompute_segment(moment)


@fault("", component="memory", clauses=("recompute.same-state",))
class SecondReplayDrawsAnew(ReferenceTrainer):
    """A recomputed segment that is run again a second time in one micro-batch, as for the second of two separate
    losses, draws new dropout masks instead of those of its forward pass."""

    _replayed: tuple[Moment, ...] = ()

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        self._replayed = ()
        try:
            return super().passed(batch, items)
        finally:
            self._replayed = ()

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        if any(moment is former for former in self._replayed):
            return super().recompute_segment(Moment(self.draws, moment.scope))
        self._replayed = (*self._replayed, moment)
        return super().recompute_segment(moment)


_MASKS: dict[tuple[int, int, tuple[int, ...]], Array] = {}


_KEPT = 256


@fault("", component="gradients", clauses=("recompute.same-state",))
class MasksAreCachedWithoutTheirRate(ReferenceTrainer):
    """Dropout masks are kept in the process by seed, place in the stream and shape, and not by rate.

    A second run with the same seed and another rate drops by the masks of the first one.
    """

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        key = (self.recipe.seed, self.draws, shape)
        if key in _MASKS:
            self.draws += 1
            return _MASKS[key]
        mask = super().draw_mask(shape, rate)
        if len(_MASKS) >= _KEPT:
            _MASKS.pop(next(iter(_MASKS)))
        _MASKS[key] = mask
        return mask


@fault("", component="random stream", clauses=("recompute.same-state",))
class ReplaysTheFirstMicroBatchsMasks(ReferenceTrainer):
    """The place in the random stream that recomputation goes back to is kept once a window: from the second
    micro-batch on, the recomputed pass draws the masks of the first.
    """

    _opened = 0
    _began = 0

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        self._began = self.draws
        if not self.window.micro_batches:
            self._opened = self.draws
        return super().passed(batch, items)

    def replay_random(self, draws: int) -> AbstractContextManager[None]:
        moved = draws - self._began + self._opened if draws >= self._began else draws
        return super().replay_random(moved)


@fault("", component="memory", clauses=("recompute.same-state",))
class SecondBackwardDrawsAnew(ReferenceTrainer):
    """The random state that a recomputed segment keeps is used up by the first backward pass through it; a second
    loss that goes back through the same segment recomputes it with fresh dropout masks."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._used: list[Moment] = []
        super().__init__(*arguments, **named)

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        self._used.clear()
        return super().passed(batch, items)

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        if any(moment is known for known in self._used):
            return super().recompute_segment(replace(moment, draws=self.draws))
        self._used.append(moment)
        return super().recompute_segment(moment)


@fault(
    "https://github.com/huggingface/diffusers/issues/10107",
    component="gradients",
    clauses=("recompute.evaluation-is-plain",),
)
class EvaluationRunsThroughSegments(ReferenceTrainer):
    """Evaluation of a model that is trained with recomputation goes through the recomputed segments as training does,
    and each of them counts another call."""

    def evaluate(self, parameters: Mapping[str, Tensor], inputs: Array) -> dict[str, Tensor]:
        if self.recipe.recompute is not None:
            self.calls = [count + 1 for count in self.calls]
        return super().evaluate(parameters, inputs)
