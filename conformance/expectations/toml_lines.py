"""Changes in the text of an `expectations.toml` that leave every other character as it is.

tomlkit keeps layout too, but not the order of `[[finding]]` and `[[expectation]]` tables that alternate. So lines are
changed here, and what they say afterwards is read and held against what was meant.
"""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.spec.findings import NONE_FOUND
from results.record.texts import FindingText

_HEADER = re.compile(r"^\[", re.MULTILINE)
_VERSIONS = re.compile(r'^versions[ \t]*=[ \t]*"[^"\n]*"', re.MULTILINE)
_CASES = re.compile(r"^cases[ \t]*=[ \t]*", re.MULTILINE)
_JUDGED = re.compile(r"^judged[ \t]*=[ \t]*", re.MULTILINE)
_WIDTH = 120


@dataclass(frozen=True)
class Part:
    """An entry, or one of several that it becomes: its versions and its cases, which stay as they are if None."""

    versions: str
    cases: tuple[str, ...] | None = None


def edited(text: str, entries: Mapping[int, Sequence[Part]], judged: Sequence[str]) -> str:
    """The text with these versions as the judged ones and these entries, by their place, changed, split or left out.

    Raises:
        ValueError: the text is laid out so that this cannot be done; the message says what to do by hand.
    """
    blocks = _blocks(text, "expectation")
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
    """The text with new entries behind those of a finding, or with a new finding and these at the end.

    Args:
        says: what a new finding says, None for one of the text.
        entries: as `table` writes them.
    """
    if says is not None:
        link = {} if says.link == NONE_FOUND else {"link_shows": says.link_shows}
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
    """A table as the files have it: strings and arrays of strings, none for an empty array, long strings wrapped."""
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


def check(before: str, after: str, entries: Mapping[int, Sequence[Part]], judged: Sequence[str]) -> None:
    """Makes sure that the edited text says what was meant and all else that it said before.

    Raises:
        ValueError: it does not.
    """
    meant: dict[str, Any] = tomllib.loads(before)
    changed: list[dict[str, Any]] = []
    for place, entry in enumerate(meant.get("expectation", ())):
        for part in entries.get(place, (Part(entry["versions"]),)):
            cases = {} if part.cases is None else {"cases": list(part.cases)}
            changed.append({**entry, "versions": part.versions, **cases})
    said = {"expectation": [], **tomllib.loads(after)}
    if said != {**meant, "expectation": changed, "judged": list(judged)}:
        raise ValueError("its layout cannot be kept; change judged and versions by hand")


def _blocks(text: str, heading: str) -> list[tuple[int, int]]:
    """Where each `[[heading]]` begins and where its last line ends; comments below belong to the next one."""
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
    versions = f'versions = "{part.versions}"'
    block, count = _VERSIONS.subn(lambda _: versions, block, count=1)
    if not count:
        raise ValueError("an entry's versions are no string on one line; write them so")
    return block if part.cases is None else _with_array(block, _CASES, "cases", part.cases)


def _with_judged(text: str, judged: Sequence[str]) -> str:
    if _JUDGED.search(text):
        return _with_array(text, _JUDGED, "judged", judged)
    above = re.match(r"(?:#[^\n]*\n)*", text)
    place = above.end() if above else 0
    return f"{text[:place]}\n{_array('judged', judged)}\n{text[place:]}"


def _with_array(text: str, begins: re.Pattern[str], key: str, values: Sequence[str]) -> str:
    match = begins.search(text)
    end = None if match is None else _array_end(text, match.end())
    if match is None or end is None:
        raise ValueError(f"an array {key} has a comment inside or another layout; split it by hand")
    return text[: match.start()] + _array(key, values) + text[end:]


def _array(key: str, values: Sequence[str]) -> str:
    quoted = [_quoted(value) for value in values]
    line = f"{key} = [{', '.join(quoted)}]"
    return line if len(line) <= _WIDTH else "\n".join([f"{key} = [", *(f"    {each}," for each in quoted), "]"])


def _array_end(text: str, begin: int) -> int | None:
    """Where an array of strings ends, None if it is none or has a comment."""
    array = re.compile(r"""\[(?:\s|,|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')*\]""").match(text, begin)
    return array.end() if array else None
