"""What a technique defines for `Framework.rule` and `Trainer.view`: rules as data, interfaces, and state, each offered
under a capability."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from frameworks.contract.capabilities import Capability

K = TypeVar("K", bound=type)

_OFFERED: dict[type, tuple[Capability, bool]] = {}


def offered(capability: Capability, *, several: bool = False) -> Callable[[K], K]:
    """Marks a class that `Framework.rule` takes.

    Args:
        several: further capabilities declare parts of it, so that a framework without this one may offer it.
    """

    def mark(kind: K) -> K:
        _OFFERED[kind] = capability, several
        return kind

    return mark


def offer_of(kind: type) -> tuple[Capability, bool]:
    """The capability of a class, and whether there are several.

    Raises:
        KeyError: the class is not marked.
    """
    return _OFFERED[kind]
