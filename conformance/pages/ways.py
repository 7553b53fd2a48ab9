"""The ways that adapters declare, as tables."""

from __future__ import annotations

from collections.abc import Mapping

from frameworks.registry import built_in
from frameworks.ways import declared

HEADER = ("way", "calls", "documented limits")


def rows(framework: str) -> list[tuple[str, str, str]]:
    """A row for each way of an adapter.

    Raises:
        UnknownFramework: there is no such adapter, or its file cannot be read.
    """
    return [
        (str(way), "; ".join(_call(name, given) for name, given in way.calls.items()), way.limits)
        for way in declared(framework)
    ]


def _call(name: str, given: Mapping[str, object]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" if given else name


def blocks() -> Mapping[str, str]:
    """The block "ways": a table for each adapter that declares any."""
    tables = {name: rows(name) for name in built_in()}
    return {"ways": "\n\n".join(f"**{name}**\n\n{_table(lines)}" for name, lines in tables.items() if lines)}


def _table(lines: list[tuple[str, str, str]]) -> str:
    quoted = [(f"`{way}`", f"`{calls}`", limits) for way, calls, limits in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in (HEADER, ("---",) * len(HEADER), *quoted))
