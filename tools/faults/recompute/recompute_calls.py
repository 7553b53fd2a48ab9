"""Faults of one recomputed call: its arguments, weights that change before the backward pass, and failures."""

from __future__ import annotations

from dataclasses import replace

from fixtures.arrays import Array
from fixtures.recipe import BFLOAT16
from frameworks.contract import RecomputeCase, RecomputeResult
from frameworks.reference import ReferenceFramework
from frameworks.reference.core import scope, tape
from tools.faults import fault

# arguments


class Calls(ReferenceFramework):
    """Splits one verb in two."""

    def called(self, case: RecomputeCase, x: Array, w: Array, variant: str | None) -> RecomputeResult:
        """The recomputation as it should be."""
        return super().recompute(case, x, w, variant)


@fault("https://github.com/PaddlePaddle/Paddle/issues/62981", "recompute.no-grad-input")
class ClosedOverWeightForgotten(Calls):
    """A weight that the function closes over gets no gradient where no argument asks for one."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        result = self.called(case, x, w, variant)
        return replace(result, w=None) if case == "no-grad-input" else result


@fault("https://github.com/pytorch/pytorch/issues/124725", "recompute.containers")
class SequencesNotSearched(Calls):
    """Tensors in tuples and lists are taken for constants."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        result = self.called(case, x, w, variant)
        return replace(result, x=None, w=None) if case in ("tuple", "list") else result


@fault("https://github.com/PaddlePaddle/Paddle/issues/62363", "recompute.containers")
class MappingsNotSearched(Calls):
    """Tensors in dictionaries and keyword arguments are taken for constants."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        result = self.called(case, x, w, variant)
        return replace(result, x=None, w=None) if case in ("dict", "keyword") else result


# weights


@fault("https://github.com/PaddlePaddle/Paddle/pull/47985", "recompute.detects-changed-weights")
class ChangedWeightsUnseen(Calls):
    """Weights that change before the backward pass are recomputed with in silence."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        if case != "weights-changed":
            return self.called(case, x, w, variant)
        return replace(self.called("positional", x, 3 * w, variant), value=self.called("plain", x, w, variant).value)


# failures


@fault("https://github.com/PaddlePaddle/Paddle/pull/35927", "recompute.failure-leaves-no-trace")
class FailureLeavesScope(Calls):
    """An error in the recomputed forward leaves its precision scope open."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        try:
            return self.called(case, x, w, variant)
        except RuntimeError:
            scope.enter(scope.Scope(BFLOAT16))
            raise


@fault("https://github.com/PaddlePaddle/Paddle/pull/47985", "recompute.failure-leaves-no-trace")
class FailureLeavesTrace(Calls):
    """An error in the recomputed forward leaves the trace that it ran in open."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        try:
            return self.called(case, x, w, variant)
        except RuntimeError:
            tape.close_down_to(tape.depth() + 1)
            raise
