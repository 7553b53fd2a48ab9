"""`torch.compile` so that nothing falls back to eager execution unseen."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
R = TypeVar("R")
_ISOLATION = "isolate_recompiles"


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function as one compiled graph, or an error: a graph break or too many variants never run eagerly.

    PyTorch counts variants by code, which all runs share; where it can count them for each call of `torch.compile`
    it is asked to, and elsewhere the count starts again.
    """
    options: dict[str, Any] = {}
    if _ISOLATION in signature(torch.compile).parameters:
        options[_ISOLATION] = True
    else:
        torch.compiler.reset()
    return cast(Callable[P, R], torch.compile(function, fullgraph=True, **options))
