"""`torch.compile` without silent fallback to eager execution."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from inspect import signature
from typing import Any, ParamSpec, TypeVar, cast

import torch

from frameworks.cache_folder import cache_folder

P = ParamSpec("P")
R = TypeVar("R")
_ISOLATION = "isolate_recompiles"
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))  # else in the temporary directory


def begin_anew() -> None:
    """Resets the compiler, as in a new process.

    PyTorch counts variants and remembers shapes by code, which all runs of a process share.
    """
    torch.compiler.reset()


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function as one compiled graph, or an error: a graph break or too many variants never run eagerly.

    Variants are counted for each call of `torch.compile` where PyTorch can count them so.
    """
    options: dict[str, Any] = {}
    if _ISOLATION in signature(torch.compile).parameters:
        options[_ISOLATION] = True
    return cast(Callable[P, R], torch.compile(function, fullgraph=True, **options))


def kept_buffers() -> AbstractContextManager[None]:
    """A scope in which compiled backward passes keep their buffers, so that one graph can be gone through twice."""
    return cast(AbstractContextManager[None], torch._functorch.config.patch(donated_buffer=False))
