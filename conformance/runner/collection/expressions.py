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
        if expression and (problem := problem_of(expression)):
            raise ValueError(f"{option}: got {expression!r}, want an expression such as 'a and not b': {problem}")


def problem_of(expression: str) -> str:
    """Why pytest cannot read an expression, "" if it can."""
    try:
        Expression.compile(expression)
    except SyntaxError as error:
        return str(error.args[0])
    return ""
