r"""The lines of a journal, and the record that they add up to.

A journal is JSON Lines. Every line is `{"crc32":"XXXXXXXX","entry":ENTRY}`, where XXXXXXXX is the CRC-32 of ENTRY's
bytes in hexadecimal, so that a line that was cut short or damaged is told from data. ENTRY has a `kind` (header,
started, verdict, observation, measurement, trace, tensors or end) and `at`, the seconds since the journal began.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from results.record.model import SCHEMA_VERSION, Record, from_document
from results.record.values import check, parse, to_line

_LINE = re.compile(rb'\{"crc32":"([0-9a-f]{8})","entry":(.*)\}', re.DOTALL)

NO_VERDICT = "the test began and no verdict was written: it took the interpreter with it, or the run was killed"
DAMAGED = "the test began and its verdict cannot be read: the journal is damaged"


def encode_line(entry: dict[str, Any]) -> bytes:
    """One line with its newline."""
    body = to_line(entry).encode("utf-8")
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
    started: dict[str, dict[str, Any]] = field(default_factory=dict)
    verdicts: dict[str, dict[str, Any]] = field(default_factory=dict)
    parts: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {"observation": {}, "measurement": {}, "trace": {}, "tensors": {}}
    )
    status: str | None = None
    finished: str | None = None
    notes: list[str] = field(default_factory=list)
    at: float = 0.0

    def take(self, entry: dict[str, Any]) -> None:
        kind = entry["kind"]
        if kind == "header":
            self.header = self.header or entry["header"]
        elif kind == "started":
            self.started[_text(entry["verdict"]["test"])] = entry["verdict"]
        elif kind == "verdict":
            self.verdicts[_text(entry["verdict"]["test"])] = entry["verdict"]
        elif kind in self.parts:
            self.parts[kind][_text(entry["name"])] = entry["value"]
        elif kind == "end":
            self.status, self.finished, self.notes = entry["status"], entry["finished"], entry.get("notes", [])
        else:
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
        verdicts = {**pending, **self.verdicts}
        return {
            "schema_version": SCHEMA_VERSION,
            **self.header,
            "finished": self.finished or (began + timedelta(seconds=self.at)).isoformat(timespec="seconds"),
            "duration_s": self.at,
            "status": self.status or "interrupted",
            "verdicts": [verdicts[test] for test in sorted(verdicts)],
            "observations": self.parts["observation"],
            "measurements": self.parts["measurement"],
            "traces": self.parts["trace"],
            "tensors": self.parts["tensors"],
            "notes": self.notes,
        }


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no name")
    return name


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number of seconds")
    return float(value)


def replay(content: bytes) -> Record:
    """The record that a journal adds up to, cut or damaged as it may be.

    A verdict counts if its line is whole; of two of one test the later counts. A test that began and has no verdict has
    crashed, unless the journal's end says that the run was interrupted on purpose.

    Raises:
        ValueError: there is no header, or whole lines do not add up to a record; in one sentence.
    """
    found = _Replay()
    entries = [decode_line(line) for line in content.removesuffix(b"\n").split(b"\n")]
    damaged = entries.count(None)
    try:
        for entry in entries:
            if entry is not None:
                found.take(entry)
        document = found.document(verdict_lost=None in entries[:-1])
        check(document)
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"a line is no journal entry ({type(error).__name__}: {error})") from None
    if damaged:
        document["notes"] = [
            *document["notes"],
            f"{damaged} of {len(entries)} lines of the journal were cut short or damaged and left out",
        ]
    return from_document(document).sorted()
