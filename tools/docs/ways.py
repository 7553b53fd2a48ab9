"""The ways that adapters declare, as tables."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.cli.ways import HEADER, rows
from frameworks.registry import built_in


def blocks() -> Mapping[str, str]:
    """The block "ways": a table for each adapter that declares any."""
    tables = {name: rows(name) for name in built_in()}
    return {"ways": "\n\n".join(f"**{name}**\n\n{_table(lines)}" for name, lines in tables.items() if lines)}


def _table(lines: list[tuple[str, str, str]]) -> str:
    quoted = [(f"`{way}`", f"`{calls}`", limits) for way, calls, limits in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in (HEADER, ("---",) * len(HEADER), *quoted))
