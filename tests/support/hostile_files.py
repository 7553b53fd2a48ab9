"""Record files that cost as much to read as their size allows, by name."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice, repeat
from pathlib import Path
from typing import Any

from results.record.files import MAX_BYTES
from results.record.journal import Journal
from results.record.lines import encode_line
from results.record.reading import MAX_SIGNS, SIGNS, to_json
from tests.support.recorded import filled, header
from tests.support.small_record import BASE, CLAUSE

NEW = json.loads(to_json(BASE))
PLACE = {"clause": CLAUSE, "key": "k", "case": ""}
BARE = {**NEW, **dict.fromkeys(("verdicts", "observations", "measurements"), ())}
VALUE = {**NEW, "observations": [{**PLACE, "value": "HOLE"}]}
CHECKS = {**NEW, "verdicts": [{"test": "t", "clause": CLAUSE, "outcome": "pass", "checks": "HOLE"}]}
VERDICT = f'{{"test":"t#","clause":"{CLAUSE}","outcome":"pass"}}'
CHECK = '{"what":"w","measured":1,"bound":1,"expected":1,"passed":true}'
TEXT = '"a.c#":{"level":"","requirement":"","source":"","history":[],"family":"f"}'
WIDE = "\N{PILE OF POO}"
"""A character that has Python keep four bytes for each character of the text."""


def full(
    document: dict[str, Any], piece: str, around: tuple[str, str] = ("", ""), between: str = "", few: bool = False
) -> bytes:
    """The document with pieces in place of "HOLE": as many as a file has room for, or as `few` values as are read.

    In a piece "#" becomes its number.
    """
    before, _, behind = json.dumps(document).partition('"HOLE"')
    left, right = (before + around[0]).encode(), (around[1] + behind).encode()
    numbered = (piece.replace("#", f"{number:08d}") for number in count()) if "#" in piece else repeat(piece)
    size = len(f"{piece.replace('#', '00000000')}{between}".encode())
    room = (MAX_BYTES - len(left) - len(right)) // size
    signs = sum(f"{piece}{between}".count(sign) for sign in SIGNS.decode())
    number = min(room, (MAX_SIGNS - 5000) // signs) if few else room
    return left + between.join(islice(numbered, number)).encode() + right


def listed(document: dict[str, Any], piece: str, few: bool = False) -> bytes:
    """The same with the pieces in a list."""
    return full(document, piece, ("[", "]"), ",", few)


def keyed(document: dict[str, Any], piece: str, few: bool = False) -> bytes:
    """The same with the pieces in an object."""
    return full(document, piece, ("{", "}"), ",", few)


def whole(path: Path) -> bytes:
    """The journal of one test."""
    made = filled(Journal.create(path, header()), 1)
    made.close()
    content = made.path.read_bytes()
    made.path.unlink()
    return content


def wrapped(entry: bytes) -> bytes:
    """The line of an entry."""
    return b'{"crc32":"%08x","entry":%s}\n' % (zlib.crc32(entry), entry)


def judged() -> Iterator[bytes]:
    """Lines of one verdict each."""
    for number in count():
        verdict = {"test": f"t{number:08d}", "clause": CLAUSE, "outcome": "pass"}
        yield encode_line({"kind": "judged", "at": 1.0, "judged": {"verdict": verdict}})


RECORDS: Mapping[str, Callable[[], bytes]] = {
    "empty lists": lambda: listed(VALUE, "[]"),
    "empty objects": lambda: listed(VALUE, "{}"),
    "numbers": lambda: listed(VALUE, "1"),
    "short texts": lambda: listed(VALUE, '"ab"'),
    "brackets alone": lambda: b"[" * MAX_BYTES,
    "objects in objects": lambda: b'{"a":' * (MAX_BYTES // 5),
    "a deep value": lambda: full(VALUE, "["),
    "deep and wide": lambda: full(VALUE, "1", ("[" * 400, "]" * 400), ",", True),
    "one text": lambda: full(VALUE, "a", ('"', '"')),
    "one wide text": lambda: full(VALUE, "a", (f'"{WIDE}', '"')),
    "one escaped text": lambda: full(VALUE, r"\u0001", ('"', '"')),
    "wide texts": lambda: listed(VALUE, f'"{WIDE}{"a" * 90}"'),
    "a key that no part has": lambda: full({**NEW, "HOLE": 1}, "a", ('"', '"')),
    "one long number": lambda: full(VALUE, "9"),
    "long numbers": lambda: listed(VALUE, "9" * 4000),
    "one long fraction": lambda: full(VALUE, "9", ("0.", "")),
    "one long exponent": lambda: full(VALUE, "9", ("1e", "")),
    "a number out of range": lambda: json.dumps(VALUE).replace('"HOLE"', "1e9999").encode(),
    "long fractions": lambda: listed(VALUE, f"1.{'7' * 800}"),
    "samples": lambda: listed({**NEW, "measurements": [{**PLACE, "unit": "s", "samples": "HOLE"}]}, "0.123"),
    "many keys": lambda: keyed(VALUE, '"#":1'),
    "many keys in bounds": lambda: keyed(VALUE, '"#":1', True),
    "many packages": lambda: keyed(
        {**NEW, "variant": {"framework_version": "1", "packages": "HOLE"}}, '"#":""', 900_000
    ),
    "many verdicts": lambda: listed({**NEW, "verdicts": "HOLE"}, VERDICT),
    "many verdicts in bounds": lambda: listed({**NEW, "verdicts": "HOLE"}, VERDICT, True),
    "many checks": lambda: listed(CHECKS, CHECK),
    "many checks in bounds": lambda: listed(CHECKS, CHECK, True),
    "many clauses": lambda: keyed({**BARE, "clauses": "HOLE"}, TEXT),
    "many clauses in bounds": lambda: keyed({**BARE, "clauses": "HOLE"}, TEXT, True),
    "many notes": lambda: listed({**NEW, "notes": "HOLE"}, '""'),
    "a long clause": lambda: full({**NEW, "clauses": {"HOLE": {}}}, "a.", ('"', 'a"')),
    "a long finding": lambda: full({**NEW, "findings": {"HOLE": {}}}, "a-", ('"', 'a"')),
    "a long date": lambda: full({**NEW, "started": "HOLE"}, "1", ('"2026-01-02T03:04:05.', 'Z"')),
    "random bytes": lambda: random.Random(0).randbytes(MAX_BYTES),
    "spaces": lambda: full(VALUE, " ", ("", "1")),
    "line breaks": lambda: full(VALUE, "\n", ("", "1")),
}
JOURNALS: Mapping[str, Callable[[Path], bytes]] = {
    "line breaks": lambda path: whole(path) + b"\n" * (MAX_BYTES // 2),
    "short lines": lambda path: whole(path) + b"{}\n" * (MAX_BYTES // 4),
    "many verdicts": lambda path: whole(path) + b"".join(islice(judged(), MAX_BYTES // 140)),
    "many verdicts in bounds": lambda path: whole(path) + b"".join(islice(judged(), MAX_SIGNS // 21)),
    "one header after the other": lambda path: (line := whole(path).splitlines(True)[0]) * (MAX_BYTES // len(line)),
    "empty lists": lambda path: (
        whole(path) + wrapped(b'{"at":1.0,"kind":"end","notes":[' + b"[]," * (MAX_BYTES // 4) + b"[]]}")
    ),
    "brackets alone": lambda path: whole(path) + wrapped(b"[" * (MAX_BYTES // 2)),
}
NAMES = (*RECORDS, *(f"journal: {name}" for name in JOURNALS))
QUICK = frozenset(
    {
        "empty lists",
        "a deep value",
        "one escaped text",
        "long numbers",
        "many checks in bounds",
        "journal: many verdicts in bounds",
        "journal: brackets alone",
    }
)
"""Names of one file of each kind; nightly CI reads the others as well."""


def make(name: str, folder: Path) -> Path:
    """Writes the file of that name into the folder."""
    kind, _, rest = name.partition(": ")
    place = folder / f"{name.replace(': ', '-').replace(' ', '-')}.json"
    content = JOURNALS[rest](folder / "made.json") if kind == "journal" else RECORDS[name]()
    path = place.with_suffix(".jsonl") if kind == "journal" else place
    path.write_bytes(content)
    return path
