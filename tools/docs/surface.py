"""How many public parameters of each framework the committed recordings used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conformance.surface.rendering import HEADER, rows
from conformance.surface.scope import FILE, scope_of
from conformance.surface.usage import committed, load
from frameworks.adapter_file import folder_of
from frameworks.registry import built_in


def blocks() -> Mapping[str, str]:
    """The blocks "surface", a row for each framework, and "surface by technique"."""
    folders = {name: folder_of(path) for name, path in built_in().items()}
    scopes = {name: scope_of(name) for name, folder in folders.items() if folder and (folder / FILE).is_file()}
    listings = {name: load(committed(name)) for name in scopes}
    tables = {name: rows(listings[name], scope) for name, scope in scopes.items()}
    versions = {name: ", ".join(f"{of} {its}" for of, its in one.versions.items()) for name, one in listings.items()}
    sums = [(versions[name], *table[-1][1:]) for name, table in tables.items()]
    each = [f"**{versions[name]}**\n\n{_table(HEADER, table[:-1])}" for name, table in tables.items()]
    return {"surface": _table(("versions", *HEADER[1:]), sums), "surface by technique": "\n\n".join(each)}


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *lines))
