"""Whether an attempt took effect."""

from __future__ import annotations

import warnings

import pytest

from frameworks.base.introspection import observed


def warning(category: type[Warning]) -> bool:
    """An attempt that warns and says that it worked."""
    warnings.warn("text", category, stacklevel=1)
    return True


@pytest.mark.parametrize("category", [DeprecationWarning, PendingDeprecationWarning, FutureWarning])
def test_a_deprecated_call_takes_effect(category: type[Warning]) -> None:
    assert observed(lambda: warning(category))


@pytest.mark.parametrize("category", [UserWarning, RuntimeWarning])
def test_a_call_that_warns_of_anything_else_does_not(category: type[Warning]) -> None:
    assert not observed(lambda: warning(category))


def test_neither_does_one_that_returns_false_or_raises() -> None:
    assert not observed(lambda: False)
    assert not observed(lambda: bool(1 // 0))
