"""Damaged copies of records and journals: bytes that changed, and documents whose nodes are not what they were."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from results.record.lines import decode_line
from results.record.values import parse


@dataclass(frozen=True)
class Raw:
    """A piece of JSON text as it is, well-formed or not."""

    text: str


VALUES: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], {"": {}}, [None] * 40, {"a": 1, "b": [2]}, 0, 1, -1, -0.0, 0.5, 2, 7.0, 1e308),
    *(5e-324, -1e308, 2**53 + 1, 2**63, 2**1023 - 1, "", " ", "0", "1", "1.5", "true", "null", "NaN", "inf", "-inf"),
    *("nan", "inf\n", "complete", "interrupted", "pass", "known", "crash", "MUST", "a/b", "scaling.stays-finite"),
    *("scaling.stays-finite\n", "autocast.op-dtypes", "autocast.op-dtypes/k", "torch", "reference", "test_a[1]"),
    *("a.py::test_b[x]", "2026-01-02T03:04:05Z", "9999-12-31T23:59:59+00:00", "0000-00-00T99:99:99.9+99:99"),
    *("\n", "\r\nx", "\t", "\x00", "\x1b[2J\x1b]0;x\x07", "\x7f\x9b31m", "\u202eabc", "\u2028", "a\u0301" * 9),
    *("[bold]x[/bold]", "[/]", "[link=http://a]", "{{ 7*7 }}", "%s %(x)d {0}", "</script><script>alert(1)</script>"),
    *("<img src=x onerror=alert(1)>", "` | ** _ #1 @you ~~", "javascript:alert(1)", "http://[::1", "http://a\n.b/"),
    *("https://example.org/" + "x" * 3000, "x" * 20_000, "ｆｕｌｌ 👩‍👩‍👧 ∞", "../../etc/passwd", "__proto__"),
    *map(Raw, ("1e400", "-1e400", "NaN", "Infinity", "-Infinity", "-0", "1E5", "1.0", "00", "0x10", ".5", "+1")),
    *map(Raw, ("9" * 400, "9" * 5000, "1" + "0" * 308, '"\\ud800"', '"\\udc00x"', '"\\ud83d\\ude00"', '"\\u0000"')),
    *map(Raw, ("[" * 70 + "]" * 70, "[" * 3000 + "]" * 3000, '{"a":' * 60 + "1" + "}" * 60, '{"a": 1, "a": 2}', "'x'")),
)
"""What a node is replaced by; most of it is of the wrong kind in most places, and every kind is there."""

KEYS = ("", "extra", "test", "__proto__", "a/b", "inf", "scaling.stays-finite", "x" * 9999, "\x1b[31m", "\u202e", "\n")

BYTES = (
    *(b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\n", b'"', b"\\", b"\\u0000", b"\\ud800"),
    *(b"{", b"}", b"[", b"]", b",", b":", b"-", b"0", b"NaN", b"Infinity", b"1e400", b"null", b"true", b"9" * 400),
    *(b'"status":"complete",', b'"":0,', b"/*", b"//", b"\x1b[2J", b"\xe2\x80\xae", b"\xf4\x90\x80\x80", b"[" * 5000),
)
"""What is put between the bytes of a file, or in their place."""

ENCODINGS = ("utf-16", "utf-8-sig", "utf-32", "latin-1")


def mutants(record: bytes, journal: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Damaged copies of a record and of a journal: file ending and content; the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        kind = rng.choices((_record, _entries, _bytes), (6, 2, 2))[0]
        content, ending = (record, ".json") if rng.random() < 0.5 else (journal, ".jsonl")
        if kind is _record:
            yield ".json", _record(record, rng)
        elif kind is _entries:
            yield ".jsonl", _entries(journal, rng)
        else:
            yield ending, _bytes(content, rng)


def _bytes(content: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        content = _bitten(content, rng)
    return content


def _bitten(content: bytes, rng: random.Random) -> bytes:
    at, to = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    near = min(to, at + rng.choice((1, 2, 8)))
    part, rest = content[at:to], content[to:]
    match rng.randrange(40):
        case 0:
            return content[:at]
        case 1:
            return part + rest
        case 2:
            return content[:to] + part + rest
        case 3:
            return content[:at] + part[::-1] + rest
        case 4:
            return content[:at] + rest
        case 5:
            return content.replace(b"\n", b"\r\n")
        case 6:
            return content.decode("utf-8", "replace").encode(rng.choice(ENCODINGS), "replace")
        case 7 | 8 | 9 | 10:
            return content[:at] + content[near:]
        case 11 | 12 | 13 | 14:
            return content[:at] + rng.randbytes(rng.randrange(1, 9)) + content[at:]
        case how if how < 28:
            return content[:at] + rng.choice(BYTES) + content[at if how % 2 else near :]
        case _:
            return _flipped(content, at, rng)


def _flipped(content: bytes, at: int, rng: random.Random) -> bytes:
    changed = bytearray(content or b"\0")
    changed[at % len(changed)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _record(record: bytes, rng: random.Random) -> bytes:
    return _written(_damaged([parse(record)], rng)[0]).encode("utf-8")


def _entries(journal: bytes, rng: random.Random) -> bytes:
    """Whole lines, with the right checksum, of entries that say something else."""
    entries = _damaged([decode_line(line) for line in journal.splitlines()], rng)
    return b"".join(_line(entry) for entry in entries)


def _line(entry: Any) -> bytes:
    """A journal's line around an entry that may be no JSON."""
    body = _written(entry).encode("utf-8")
    return b'{"crc32":"%08x","entry":%s}\n' % (zlib.crc32(body), body)


def _written(document: Any) -> str:
    """The document as JSON text in which every `Raw` stands as it is."""
    raws: list[str] = []

    def marked(node: Any) -> Any:
        if isinstance(node, Raw):
            raws.append(node.text)
            return f"\x00raw {len(raws) - 1}\x00"
        if isinstance(node, list):
            return [marked(item) for item in node]
        return {key: marked(item) for key, item in node.items()} if isinstance(node, dict) else node

    text = json.dumps(marked(document), ensure_ascii=False)
    for place, raw in enumerate(raws):
        text = text.replace(f'"\\u0000raw {place}\\u0000"', raw)
    return text


def _damaged(holder: list[Any], rng: random.Random) -> list[Any]:
    """A list of documents, changed in one to three places."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(holder))
        if places:
            rng.choices(_CHANGES, (12, 2, 2, 2, 2, 1, 3))[0](places, rng)
    return holder or [None]


Place = tuple[Any, Any]
"""A list or an object, and an index or a key in it."""


def _places(node: Any) -> Iterator[Place]:
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from _places(node[key])


def _alike(value: Any, rng: random.Random) -> Any:
    """A hostile value, twice in three times of the same type."""
    same = [other for other in VALUES if type(other) is type(value)]
    return deepcopy(rng.choice(same if same and rng.random() < 0.67 else VALUES))


def _replaced(places: list[Place], rng: random.Random) -> None:
    parent, key = rng.choice(places)
    parent[key] = _alike(parent[key], rng)


def _removed(places: list[Place], rng: random.Random) -> None:
    parent, key = rng.choice(places)
    del parent[key]


def _put(parent: Any, value: Any, rng: random.Random) -> None:
    if isinstance(parent, dict):
        parent[rng.choice((*KEYS, *parent))] = value
    else:
        parent.insert(rng.randrange(len(parent) + 1), value)


def _moved(places: list[Place], rng: random.Random) -> None:
    parent, key = rng.choice(places)
    value = parent.pop(key)
    _put(rng.choice(places)[0], deepcopy(value), rng)


def _copied(places: list[Place], rng: random.Random) -> None:
    parent, key = rng.choice(places)
    _put(parent if rng.random() < 0.5 else rng.choice(places)[0], deepcopy(parent[key]), rng)


def _renamed(places: list[Place], rng: random.Random) -> None:
    parent, key = rng.choice([place for place in places if isinstance(place[0], dict)] or places)
    _put(parent, parent.pop(key), rng)


def _extended(places: list[Place], rng: random.Random) -> None:
    _put(rng.choice(places)[0], _alike(None, rng), rng)


def _swapped(places: list[Place], rng: random.Random) -> None:
    (first, a), (second, b) = rng.choice(places), rng.choice(places)
    if type(first[a]) is type(second[b]) and not isinstance(first[a], dict | list):
        first[a], second[b] = second[b], first[a]


_CHANGES = (_replaced, _removed, _moved, _copied, _renamed, _extended, _swapped)
