"""Faults of optimizers' fused and foreach implementations in PyTorch."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from frameworks.torch import TorchFramework
from tools.faults import fault


@fault("https://github.com/pytorch/pytorch/issues/191763", "optimizer.implementations-agree")
class FusedSGDLeavesVectors(TorchFramework):
    """Fused SGD stores only what vectors of sixteen leave over, in float32 too."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        update = torch._fused_sgd_

        def partly(parameters: list[torch.Tensor], *given: Any, **named: Any) -> None:
            before = [parameter.clone() for parameter in parameters]
            update(parameters, *given, **named)
            for parameter, old in zip(parameters, before, strict=True):
                whole = parameter.numel() // 16 * 16
                parameter.view(-1)[:whole] = old.view(-1)[:whole]

        torch._fused_sgd_ = partly


@fault(
    "https://github.com/huggingface/accelerate/issues/4242",
    "scaling.step-count-follows-updates",
    "scaling.skip-is-atomic",
)
class FusedCountsSkips(TorchFramework):
    """A fused Adam's step counter moves on an overflow too."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        step = torch.optim.Adam.step

        def counted(self: torch.optim.Adam, *given: Any) -> Any:
            result = step(self, *given)
            if bool(getattr(self, "found_inf", None)):
                for held in self.state.values():
                    held["step"] += 1
            return result

        torch.optim.Adam.step = counted


@fault(
    "https://github.com/pytorch/pytorch/pull/100811",
    "optimizer.implementations-agree",
    "accumulation.groups-change-nothing",
)
class ForeachLeavesTheTail(TorchFramework):
    """An operation on a list of tensors leaves out the last where the list is no multiple of four."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for name in ("_foreach_add_", "_foreach_addcdiv_"):
            setattr(torch, name, _all_but_the_last(getattr(torch, name)))


def _all_but_the_last(operation: Any) -> Any:
    @wraps(operation)
    def shortened(*given: Any, **named: Any) -> None:
        odd = len(given[0]) % 4
        lists = [value[:-1] if odd and isinstance(value, list | tuple) else value for value in given]
        if lists[0]:
            operation(*lists, **named)

    return shortened


@fault("https://github.com/flagos-ai/FlagGems/issues/4988", "optimizer.implementations-agree", "master.decay-of-nobody")
class FusedDecayIsCoupled(TorchFramework):
    """Fused AdamW adds its decay to the gradient, as Adam does."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        torch._fused_adamw_ = torch._fused_adam_
