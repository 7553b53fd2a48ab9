"""`torch.compile` without silent fallback to eager execution."""

import os
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from inspect import signature
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.utils._pytree import tree_flatten

from frameworks.cache_folder import cache_folder

P = ParamSpec("P")
R = TypeVar("R")


COMPILE, DYNAMIC = "compile", "compile-dynamic"
MODES = (COMPILE, DYNAMIC)
"""Compiled modes: PyTorch's default, in which sizes are constants until they change, and programs for all sizes."""
_ISOLATION = "isolate_recompiles"
_KINDS: WeakKeyDictionary[Callable[..., Any], set[Hashable]] = WeakKeyDictionary()
"""Kinds of arguments that functions for all sizes have programs for, which a reset of the compiler removes."""
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))  # else in the temporary directory


def begin_anew() -> None:
    """Resets the compiler, as in a new process.

    PyTorch counts variants and remembers shapes by code, which all runs of a process share.
    """
    torch.compiler.reset()
    for kinds in _KINDS.values():
        kinds.clear()


def compiled(function: Callable[P, R], mode: str) -> Callable[P, R]:
    """The function as one compiled graph, or an error: a graph break or too many variants never run eagerly.

    Variants are counted for each call of `torch.compile` where PyTorch can count them so. In mode "compile-dynamic" an
    error is also a second program for arguments that differ from earlier ones in their sizes alone.
    """
    options: dict[str, Any] = {"dynamic": True} if mode == DYNAMIC else {}
    if _ISOLATION in signature(torch.compile).parameters:
        options[_ISOLATION] = True
    call = torch.compile(function, fullgraph=True, **options)
    return _once_for_all_sizes(call) if mode == DYNAMIC and hasattr(torch.compiler, "set_stance") else call


def _once_for_all_sizes(call: Callable[P, R]) -> Callable[P, R]:
    """The compiled function, which may not compile again for arguments that only have other sizes."""
    kinds: set[Hashable] = set()

    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        kind = _kind(args, kwargs)
        if kind not in kinds:
            kinds.add(kind)
            return call(*args, **kwargs)
        with torch.compiler.set_stance("fail_on_recompile"):
            return call(*args, **kwargs)

    _KINDS[checked] = kinds
    return checked


def _kind(*arguments: object) -> Hashable:
    """All but the sizes of the arguments; PyTorch specializes programs on sizes of 0 and 1, and on equal sizes."""
    leaves, structure = tree_flatten(arguments)
    sizes = [size for leaf in leaves if isinstance(leaf, torch.Tensor) for size in leaf.shape]
    tensors = [
        (leaf.dtype, leaf.dim(), leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
    ]
    equal = [size if size < 2 else -1 - sizes.index(size) for size in sizes]
    return torch.is_grad_enabled(), str(structure), tuple(tensors), tuple(equal)


def without_buffer_donation() -> AbstractContextManager[None]:
    """A scope in which compiled backward passes keep their buffers, so that one graph can be gone through twice."""
    return torch._functorch.config.patch(donated_buffer=False)
