"""Sums of gradients over ranks, as operations of a program between its backward pass and its update."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
from paddle import distributed

from fixtures.recipe import Ranks
from frameworks.paddle.core.arrays import format_name

_OPERATION = "pd_op.all_reduce_"
_LOW = ("float16", "bfloat16")

Pairs = list[tuple[Any, Any]]


class Reduction:
    """Adds gradients up over the ranks by `paddle.distributed.all_reduce`, low ones in float32.

    fleet's own optimizer for it raises in programs of the new IR, and no public call of an optimizer takes what comes
    between `backward` and `apply_gradients`, which `minimize` calls.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._count = ranks.count

    def in_updates(self, optimizer: Any, parameters: Sequence[Any], *, mean: bool) -> None:
        """Lets the optimizer's `minimize` update by the sums, or the means, over all ranks."""
        own = optimizer.backward

        def backward(*given: Any, **named: Any) -> Pairs:
            return self.sums(own(*given, **named), parameters, mean=mean)

        optimizer.backward = backward

    def sums(self, pairs: Pairs, parameters: Sequence[Any], *, mean: bool = False) -> Pairs:
        """These parameters with their gradients over all ranks; one that this rank does not use counts as zeros."""
        own = {parameter.name: gradient for parameter, gradient in pairs if gradient is not None}
        return [
            (each, self._summed(own[each.name] if each.name in own else _zeros(each), mean=mean)) for each in parameters
        ]

    def _summed(self, gradient: Any, *, mean: bool) -> Any:
        if self._count == 1:
            return gradient
        low = format_name(gradient.dtype) in _LOW
        total = gradient.astype("float32") if low else paddle.assign(gradient)
        distributed.all_reduce(total)
        if mean:
            total = total / self._count
        return total.astype(gradient.dtype) if low else total


def _zeros(parameter: Any) -> Any:
    return paddle.zeros(list(parameter.shape), format_name(parameter.dtype))


def reduced_bytes(program: Any) -> tuple[int, ...]:
    """The size of every tensor that a program reduces over the ranks."""
    reduced = [op.results()[0] for op in program.global_block().ops if op.name() == _OPERATION]
    return tuple(int(np.prod(each.shape)) * np.dtype(format_name(each.dtype)).itemsize for each in reduced)
