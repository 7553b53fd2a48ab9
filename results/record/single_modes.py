"""Tests that later suites run in one mode alone (`single_modes.toml`): their absence from other modes is no change."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_suffix(".toml")


@cache
def single_modes(path: Path = FILE) -> Mapping[tuple[str, str], str]:
    """Modes by framework and test, CLAUSE/CASE."""
    return {
        (framework, f"{clause}/{case}"): mode
        for clause, frameworks in tomllib.loads(path.read_text("utf-8")).items()
        for framework, modes in frameworks.items()
        for mode, cases in modes.items()
        for case in cases
    }
