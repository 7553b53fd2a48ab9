"""Expressions of pytest that select tests, read before anything starts."""

from __future__ import annotations

import pytest
from _pytest.mark.expression import Expression


def check_expressions(config: pytest.Config) -> None:
    """Reads the expressions of `-k` and `-m`, which every worker would refuse by itself.

    Raises:
        ValueError: an expression is none.
    """
    for option, name in (("-k", "keyword"), ("-m", "markexpr")):
        expression = getattr(config.option, name, "")
        try:
            if expression:
                Expression.compile(expression)
        except SyntaxError as error:
            raise ValueError(
                f"{option}: got {expression!r}, want an expression such as 'a and not b': {error}"
            ) from None
