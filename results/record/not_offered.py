"""Refusals in records of schema 1 and 2, where all are `unsupported`, converted to schema 3."""

from __future__ import annotations

from typing import Any

_TRIED = "(tried)"
"""How the message of a refusal ends if a call of the framework was tried; suites that did not say so tried nothing."""


def not_offered(verdict: dict[str, Any]) -> dict[str, Any]:
    """The verdict, `not offered` if it is a refusal of which nothing was tried; the argument stays as it is."""
    if verdict["outcome"] != "unsupported" or str(verdict.get("message", "")).endswith(_TRIED):
        return verdict
    return {**verdict, "outcome": "not offered"}
