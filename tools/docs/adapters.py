"""Tables of the ways that adapters declare, and of the public parameters that the committed recordings used."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.cli.surface import WAYS_HEADER, ways_rows
from conformance.scenarios.table import markdown_table
from conformance.surface import rendering
from conformance.surface.scope import FILE, scope_of
from conformance.surface.usage import committed, load
from frameworks.adapter_file import folder_of
from frameworks.registry import built_in


def ways() -> Mapping[str, str]:
    """The block "ways": a table for each adapter that declares any."""
    parts = []
    for name in built_in():
        if rows := [(f"`{way}`", f"`{calls}`", limits) for way, calls, limits in ways_rows(name)]:
            parts.append(f"**{name}**\n\n{markdown_table(WAYS_HEADER, rows)}")
    return {"ways": "\n\n".join(parts)}


def surface() -> Mapping[str, str]:
    """The blocks "surface", a row for each framework, and "surface by technique"."""
    folders = {name: folder_of(path) for name, path in built_in().items()}
    scopes = {name: scope_of(name) for name, folder in folders.items() if folder and (folder / FILE).is_file()}
    listings = {name: load(committed(name)) for name in scopes}
    tables = {name: rendering.rows(listings[name], scope) for name, scope in scopes.items()}
    versions = {name: ", ".join(f"{of} {its}" for of, its in one.versions.items()) for name, one in listings.items()}
    sums = [(versions[name], *table[-1][1:]) for name, table in tables.items()]
    each = [f"**{versions[name]}**\n\n{markdown_table(rendering.HEADER, table[:-1])}" for name, table in tables.items()]
    return {
        "surface": markdown_table(("versions", *rendering.HEADER[1:]), sums),
        "surface by technique": "\n\n".join(each),
    }
