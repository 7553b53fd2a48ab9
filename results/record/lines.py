r"""The lines of a journal, and the record that they make.

A journal is JSON Lines. Every line is `{"crc32":"XXXXXXXX","entry":ENTRY}`, where XXXXXXXX is the CRC-32 of ENTRY's
bytes in hexadecimal, which shows whether the line was cut short or damaged. ENTRY has `at`, the seconds since the
journal began, and a `kind`: `header`, with the record's header and the version of the schema; `started`, with the
verdict of a test from which nothing follows; `judged`, with what a test leaves in the record; or `end`.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from results.record.encoding import VersionError, from_document
from results.record.model import PARTS, Record
from results.record.schema import SCHEMA_VERSION
from results.record.values import parse, to_line

_LINE = re.compile(rb'\{"crc32":"([0-9a-f]{8})","entry":(.*)\}', re.DOTALL)

NO_VERDICT = "the test began and no verdict was written: it took the interpreter with it, or the run was killed"
DAMAGED = "the test began and its verdict cannot be read: the journal is damaged"


def encode_line(entry: dict[str, Any]) -> bytes:
    """One line with its newline."""
    return _line(to_line(entry).encode("utf-8"))


def encode_judged_line(at: float, judged: str) -> bytes:
    """The line of a test's part of a record, which is JSON in one line already."""
    return _line(f'{{"at":{to_line(at)},"judged":{judged},"kind":"judged"}}'.encode())


def _line(body: bytes) -> bytes:
    return b'{"crc32":"%08x","entry":%s}\n' % (zlib.crc32(body), body)


def decode_line(line: bytes) -> dict[str, Any] | None:
    """The entry of one line without its newline, None if the line is not whole."""
    match = _LINE.fullmatch(line)
    if match is None or zlib.crc32(match[2]) != int(match[1], 16):
        return None
    try:
        entry = parse(match[2])
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


@dataclass
class _Replay:
    header: dict[str, Any] | None = None
    version: object = None
    started: dict[str, dict[str, Any]] = field(default_factory=dict)
    judged: dict[str, dict[str, Any]] = field(default_factory=dict)
    status: str | None = None
    finished: str | None = None
    notes: list[str] = field(default_factory=list)
    at: float = 0.0

    def take(self, entry: dict[str, Any]) -> None:
        kind = entry["kind"]
        if kind == "header" and self.header is None:
            self.header, self.version = entry["header"], entry.get("schema_version", 1)
            if self.version != SCHEMA_VERSION or isinstance(self.version, bool):
                raise VersionError(self.version)
        elif kind == "started":
            self.started[_text(entry["verdict"]["test"])] = entry["verdict"]
        elif kind == "judged":
            self.judged[_text(entry["judged"]["verdict"]["test"])] = entry["judged"]
        elif kind == "end":
            self.status, self.finished, self.notes = entry["status"], entry["finished"], entry.get("notes", [])
        elif kind != "header":
            raise ValueError(f"unknown kind of line {str(kind)[:40]!r}")
        self.at = max(self.at, _seconds(entry["at"]))

    def document(self, verdict_lost: bool) -> dict[str, Any]:
        """The record's document; `verdict_lost` if a test without a verdict may have had one."""
        if self.header is None:
            raise ValueError("its header is missing or damaged")
        began = datetime.fromisoformat(self.header["started"])
        pending = {} if self.status == "interrupted" else self.started
        if verdict_lost:
            pending = {test: {**verdict, "message": DAMAGED} for test, verdict in pending.items()}
        verdicts = {**pending, **{test: judged["verdict"] for test, judged in self.judged.items()}}
        return {
            "schema_version": SCHEMA_VERSION,
            **self.header,
            "finished": self.finished or (began + timedelta(seconds=self.at)).isoformat(timespec="seconds"),
            "duration_s": self.at,
            "status": self.status or "interrupted",
            "verdicts": [verdicts[test] for test in sorted(verdicts)],
            **{name: self._parts(name) for name in PARTS},
            "notes": self.notes,
        }

    def _parts(self, name: str) -> list[dict[str, Any]]:
        """What the tests leave under `name`, the later of two in one place, in order."""
        placed = {
            (_text(part.get("clause", "")), _text(part["key"]), _text(part["case"])): part
            for judged in self.judged.values()
            for part in judged.get(name, ())
        }
        return [placed[place] for place in sorted(placed)]


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"got {name!r}, want a name")
    return name


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"got {value!r}, want a number of seconds")
    return float(value)


def replay(content: bytes) -> Record:
    """The record of a journal, which may be cut or damaged.

    A verdict counts if its line is whole; of two of one test the later counts. A test that began and has no verdict has
    crashed, unless the journal's end says that the run was interrupted on purpose.

    Raises:
        ValueError: there is no header, or whole lines do not add up to a record; in one sentence.
    """
    replayed = _Replay()
    entries = [decode_line(line) for line in content.removesuffix(b"\n").split(b"\n")]
    damaged = entries.count(None)
    try:
        for entry in entries:
            if entry is not None:
                replayed.take(entry)
        document = replayed.document(verdict_lost=None in entries[:-1])
        if damaged:
            lines = f"{damaged} of {len(entries)} lines of the journal were cut short or damaged and left out"
            document["notes"] = [*document["notes"], lines]
    except KeyError as error:
        raise ValueError(f"a line is not a journal entry: it lacks {error}") from None
    except (AttributeError, TypeError, OverflowError) as error:
        raise ValueError(f"a line is not a journal entry ({error})") from None
    return from_document(document).sorted()
