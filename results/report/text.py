"""Cleaning of records' texts, which must not reorder, hide or flood a page; and their links and JSON."""

import base64
import json
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from results.record.model import Json

NAME, VALUE, MESSAGE = 160, 600, 4000
"""Largest number of characters of a name, a value and a message."""

_URL = re.compile(r"https?://[^\s<>\"'`\\]+", re.IGNORECASE)
_LINK_LIMIT = 2000
_MARKS_IN_A_ROW = 3
_MAX_DEPTH = 8
_MAX_ITEMS = 64


@dataclass(frozen=True)
class TextPart:
    """A part of a text; `href` is its link, or ""."""

    text: str
    href: str = ""


def clean(text: str, limit: int = NAME, lines: bool = False) -> str:
    """Return `text` cut to `limit` characters with a notice, with invisible characters replaced by their code points.

    Args:
        text: any text.
        limit: number of characters that stay.
        lines: whether line breaks and tabs stay as they are.
    """
    head, omitted = text[:limit], len(text) - limit
    if not (head.isascii() and head.isprintable()):
        head = _visible(head, lines)
    return f"{head}… [{omitted:,} more characters are left out]" if omitted > 0 else head


def _visible(text: str, lines: bool) -> str:
    result, marks = [], 0
    for character in text:
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if lines and character in "\n\t":
            result.append(character)
        elif category == "Zs":
            result.append(" ")
        elif category[0] == "C" or category in ("Zl", "Zp"):
            result.append(f"‹U+{ord(character):04X}›")
        elif marks <= _MARKS_IN_A_ROW:
            result.append(character)
    return "".join(result)


def href(link: str) -> str:
    """Return the link if it is a safe web address without a user name or a password, else ""."""
    if len(link) > _LINK_LIMIT or not _URL.fullmatch(link) or not link.isprintable():
        return ""
    try:
        parts = urlsplit(link)
    except ValueError:
        return ""
    return link if parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc else ""


def link_addresses(text: str, limit: int = VALUE) -> tuple[TextPart, ...]:
    """Split `text` into parts; web addresses in it become links."""
    result, at, head = [], 0, text[:limit]
    for match in _URL.finditer(head):
        address = match[0].rstrip(".,;:)")
        end = match.start() + len(address)
        if end == limit < len(text) or not href(address):
            continue
        result += [TextPart(clean(head[at : match.start()], limit)), TextPart(clean(address, limit), address)]
        at = end
    return tuple(piece for piece in (*result, TextPart(clean(text[at:], max(limit - at, 0)))) if piece.text)


def embed_json(document: Any) -> str:
    """Return compact JSON that is safe inside an element of a page."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def compress_texts(texts: Iterable[str]) -> Iterator[str]:
    """These texts joined, as gzip in base64, in pieces; equal texts give equal pieces."""
    compressor, rest = zlib.compressobj(9, wbits=zlib.MAX_WBITS | 16), b""
    for text in texts:
        rest += compressor.compress(text.encode("utf-8"))
        whole = len(rest) - len(rest) % 3
        yield base64.b64encode(rest[:whole]).decode("ascii")
        rest = rest[whole:]
    yield base64.b64encode(rest + compressor.flush()).decode("ascii")


def number(value: float) -> str:
    """Return a number with at most six digits, integers in full."""
    if isinstance(value, int):
        return str(value) if abs(value) < 10**15 else f"{value:.6g}"
    return f"{value:.6g}"


def format_value(value: Json, limit: int = VALUE) -> str:
    """Return a value in one line."""
    return clean(value if isinstance(value, str) else _line(value, limit, 0), limit)


def _line(value: Json, limit: int, depth: int) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, str):
        return value[: limit + 1] if len(value) > limit else value
    if depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        items = [f"{key[:NAME]}: {_line(item, limit, depth + 1)}" for key, item in list(value.items())[:_MAX_ITEMS]]
    else:
        items = [_line(item, limit, depth + 1) for item in value[:_MAX_ITEMS]]
    more = ["…"] if len(value) > _MAX_ITEMS else []
    return ("{%s}" if isinstance(value, Mapping) else "[%s]") % ", ".join([*items, *more])
