"""Tables of the ways that adapters declare."""

from collections.abc import Mapping

from conformance.cli.specifying import WAYS_HEADER, ways_rows
from conformance.scenarios.table import markdown_table
from frameworks.registry import built_in


def ways() -> Mapping[str, str]:
    """The block "ways": a table for each adapter that declares any."""
    parts = []
    for name in built_in():
        if rows := [(f"`{way}`", f"`{calls}`", limits) for way, calls, limits in ways_rows(name)]:
            parts.append(f"**{name}**\n\n{markdown_table(WAYS_HEADER, rows)}")
    return {"ways": "\n\n".join(parts)}
