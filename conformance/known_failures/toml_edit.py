"""Edits of an `expectations.toml` that leave all other text unchanged.

tomlkit keeps layout too, but not the order of alternating `[[finding]]` and `[[expectation]]` tables. So this module
edits lines, and then reads the result and compares it with the intended content.
"""

import json
import re
import textwrap
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from conformance.known_failures.judged_series import JUDGED, Judged
from conformance.spec.findings import NO_LINK
from results.record.texts import FindingText

_HEADER = re.compile(r"^\[", re.MULTILINE)
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 120


@dataclass(frozen=True)
class Part:
    """A changed entry, or one of the parts of a split one: its versions, and its cases, device and mode (None leaves
    them unchanged)."""

    versions: str
    cases: tuple[str, ...] | None = None
    device: str | None = None
    mode: str | None = None

    def __str__(self) -> str:
        return " ".join(word for word in (self.versions, self.device, self.mode) if word)

    @property
    def values(self) -> dict[str, Any]:
        """The keys that it sets."""
        cases = {} if self.cases is None else {"cases": list(self.cases)}
        words = {"versions": self.versions, "device": self.device, "mode": self.mode}
        return {key: word for key, word in words.items() if word is not None} | cases


Parts = Mapping[int, Sequence[Part]]
"""Parts of changed entries by position among the expectations or exclusions of a file; none for a dropped one."""


def edited(text: str, expectations: Parts, judged: Judged, exclusions: Parts = MappingProxyType({})) -> str:
    """The text with these judged series, and with these entries changed, split or removed.

    Raises:
        ValueError: the layout does not allow this edit; the message says what to do by hand.
    """
    for heading, entries in (("expectation", expectations), ("exclusion", exclusions)):
        blocks = _blocks(text, heading)
        for place in sorted(entries, reverse=True):
            begin, end = blocks[place]
            parts = [_part(text[begin:end], part) for part in entries[place]]
            text = text[:begin] + "\n".join(parts) + text[end:] if parts else _cut(text, begin, end)
    return _with_judged(text, judged)


def without_findings(text: str, names: Collection[str]) -> str:
    """The text without the findings of these ids."""
    for begin, end in reversed(_blocks(text, "finding")):
        if tomllib.loads(text[begin:end])["finding"][0]["id"] in names:
            text = _cut(text, begin, end)
    return text


def inserted(text: str, finding: str, says: FindingText | None, entries: Sequence[str]) -> str:
    """The text with new entries after those of a finding, or with a new finding and its entries at the end.

    Args:
        says: text of a new finding, None for an existing one.
        entries: as `table` writes them.
    """
    if says is not None:
        link = {} if says.link == NO_LINK else {"link_shows": says.link_shows}
        values = {"id": finding, "class": says.kind, "consequence": says.consequence, "reason": says.reason}
        blocks = [table("finding", {**values, "link": says.link, **link}), *entries]
        return "\n".join([text.rstrip("\n") + "\n", *blocks]) if text.strip() else "\n".join(blocks)
    ends = [end for begin, end in _blocks(text, "finding") if _value(text[begin:end], "finding", "id") == finding]
    ends += [
        end
        for begin, end in _blocks(text, "expectation")
        if _value(text[begin:end], "expectation", "finding") == finding
    ]
    return "\n".join([text[: max(ends)], *entries]) + text[max(ends) :] if entries else text


def table(heading: str, values: Mapping[str, str | Sequence[str]]) -> str:
    """A table in the layout of the files: strings and arrays of strings; empty arrays omitted, long strings wrapped."""
    lines = [f"[[{heading}]]"]
    for key, value in values.items():
        if not isinstance(value, str):
            lines += [_array(key, value)] if value else []
        else:
            line = f"{key} = {_quoted(value)}"
            lines.append(line if len(line) <= _WIDTH else f'{key} = """\n{_wrapped(value)}"""')
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> str:
    escaped = _quoted(" ".join(text.split()))[1:-1]
    return textwrap.fill(escaped, _WIDTH - 3, break_long_words=False, break_on_hyphens=False)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _value(block: str, heading: str, key: str) -> object:
    return tomllib.loads(block)[heading][0].get(key)


def _cut(text: str, begin: int, end: int) -> str:
    return text[:begin] + text[end:].removeprefix("\n")


def check(
    before: str, after: str, expectations: Parts, judged: Judged, exclusions: Parts = MappingProxyType({})
) -> None:
    """Verifies that the edited text has the intended changes and no others.

    Raises:
        ValueError: it does not.
    """
    meant: dict[str, Any] = tomllib.loads(before)
    for heading, entries in (("expectation", expectations), ("exclusion", exclusions)):
        meant[heading] = [
            {**entry, **part.values}
            for place, entry in enumerate(meant.get(heading, ()))
            for part in entries.get(place, (Part(entry["versions"]),))
        ]
    series: dict[str, dict[str, list[str]]] = {}
    for (device, mode), versions in judged.items():
        series.setdefault(device, {})[mode] = list(versions)
    if {"expectation": [], "exclusion": [], **tomllib.loads(after)} != {**meant, JUDGED: series}:
        raise ValueError("the layout cannot be kept; edit judged and versions by hand")


def _blocks(text: str, heading: str) -> list[tuple[int, int]]:
    """Start of each `[[heading]]` and end of its last line; comments below belong to the next one."""
    blocks = []
    for match in re.finditer(rf"^\[\[{heading}\]\][^\n]*\n", text, re.MULTILINE):
        header = _HEADER.search(text, match.end())
        body = text[match.start() : header.start() if header else len(text)]
        lines = body.splitlines(keepends=True)
        while lines[1:] and (not lines[-1].strip() or lines[-1].startswith("#")):
            lines.pop()
        blocks.append((match.start(), match.start() + sum(map(len, lines))))
    return blocks


def _part(block: str, part: Part) -> str:
    above = ""
    for key in ("versions", "device", "mode"):
        word = part.values.get(key)
        line = re.search(rf'^{key}[ \t]*=[ \t]*"[^"\n]*"', block, re.MULTILINE)
        if word is not None and line is not None:
            block = f"{block[: line.start()]}{key} = {_quoted(word)}{block[line.end() :]}"
        elif word is not None:
            block = _below(block, above, f"{key} = {_quoted(word)}")
        above = key if word is not None or line is not None else above
    return block if part.cases is None else _with_array(block, "cases", part.cases)


def _below(block: str, key: str, new: str) -> str:
    """The block with a new line below a key."""
    line = re.search(rf"^{key}[ \t]*=[^\n]*\n", block, re.MULTILINE) if key else None
    if line is None:
        raise ValueError("an entry's versions must be a string on one line")
    return f"{block[: line.end()]}{new}\n{block[line.end() :]}"


def _with_judged(text: str, judged: Judged) -> str:
    header = re.search(rf"^\[{JUDGED}\][^\n]*\n", text, re.MULTILINE)
    if header is None:
        if JUDGED in tomllib.loads(text):
            raise ValueError(f"{JUDGED} must be a table [{JUDGED}]")
        above = re.match(r"(?:#[^\n]*\n)*", text)
        place = above.end() if above else 0
        lines = [_array(_key(*where), versions) for where, versions in judged.items()]
        return "\n".join([f"{text[:place]}\n[{JUDGED}]", *lines, text[place:]])
    end = _HEADER.search(text, header.end())
    block, rest = (text[header.end() : end.start()], text[end.start() :]) if end else (text[header.end() :], "")
    there = tomllib.loads(block)
    for (device, mode), versions in judged.items():
        former = there.get(device, {}).get(mode)
        if former is None:
            lines = block.rstrip("\n").split("\n")
            last = max((n for n, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")), default=0)
            new = _array(_key(device, mode), versions)
            block = "\n".join([*lines[:last], new, *lines[last:]]) + block[len(block.rstrip("\n")) :]
        elif former != list(versions):
            block = _with_array(block, _key(device, mode), versions)
    return text[: header.end()] + block + rest


def _key(device: str, mode: str) -> str:
    return ".".join(word if _BARE.fullmatch(word) else _quoted(word) for word in (device, mode))


def _with_array(text: str, key: str, values: Sequence[str]) -> str:
    match = re.search(rf"^{re.escape(key)}[ \t]*=[ \t]*", text, re.MULTILINE)
    end = None if match is None else _array_end(text, match.end())
    if match is None or end is None:
        raise ValueError(f"an array {key} contains a comment or has another layout; split it by hand")
    return text[: match.start()] + _array(key, values) + text[end:]


def _array(key: str, values: Sequence[str]) -> str:
    quoted = [_quoted(value) for value in values]
    line = f"{key} = [{', '.join(quoted)}]"
    return line if len(line) <= _WIDTH else "\n".join([f"{key} = [", *(f"    {each}," for each in quoted), "]"])


def _array_end(text: str, begin: int) -> int | None:
    """End of an array of strings; None if it is not one or has a comment."""
    array = re.compile(r"""\[(?:\s|,|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')*\]""").match(text, begin)
    return array.end() if array else None
