"""Updates an adapter's expectations from records: versions, dropped entries, and entries for unexpected failures."""

import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from conformance.known_failures.confirm import FAILED, Confirmation, ConfirmError, confirm
from conformance.known_failures.entries import Known
from conformance.known_failures.judged_series import every_version
from conformance.known_failures.toml_edit import Part, edited, inserted, table
from conformance.known_failures.version_ranges import rewritten
from results.record.model import TestVerdict
from results.record.reading import Record
from results.record.texts import FindingText


@dataclass(frozen=True)
class Cause:
    """The finding of new entries.

    Attributes:
        id: of an existing or new finding.
        text: of a new finding, None for an existing one.
        clauses: clauses whose failures it causes; empty for all.
    """

    id: str
    text: FindingText | None = None
    clauses: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExpectationUpdate:
    """The update of an adapter's file.

    Attributes:
        text: the whole new file.
        confirmed: changes of existing entries.
        added: new entries, or new cases of existing ones, one line each.
        unnamed: failures without an entry.
    """

    text: str
    confirmed: Confirmation
    added: tuple[str, ...] = ()
    unnamed: tuple[TestVerdict, ...] = ()


@dataclass(frozen=True)
class _Entry:
    clause: str
    signature: str
    device: str
    mode: str
    cases: tuple[str, ...]

    @property
    def line(self) -> str:
        cases = ", ".join(self.cases) or "every case"
        where = ", ".join(word for word in (self.device, self.mode) if word != "*")
        return f"{self.clause} ({self.signature}{', ' if where else ''}{where}): {cases}"


def update(records: Sequence[Record], known: Known, text: str, cause: Cause | None) -> ExpectationUpdate:
    """The update of an adapter's file by records of one version.

    Entries are changed to apply exactly where the records show their failure; one that would apply in no judged series
    is dropped, and so is a finding without entries. With a cause, unexpected failures become its entries, for this
    version, device and mode and for these cases only. A failure in all of several records gets no mode.

    Args:
        known: content of the file.
        text: present text of the file.

    Raises:
        ConfirmError: as `confirm`; the cause is a new finding without a text, or an existing one with a text.
    """
    confirmed = confirm(records, known, text)
    if cause is None:
        return ExpectationUpdate(confirmed.text, confirmed, (), confirmed.unnamed)
    there = cause.id in {finding.id for finding in known.findings}
    if there and cause.text is not None:
        raise ConfirmError(f"the finding {cause.id!r} exists already", "omit --text")
    if not there and cause.text is None:
        remedy = "describe it with --text CLASS CONSEQUENCE REASON"
        raise ConfirmError(f"the finding {cause.id!r} does not exist", remedy)
    failures = (each for each in confirmed.unnamed if each.outcome in FAILED and each.signature)
    chosen = {id(each) for each in failures if not cause.clauses or each.clause in cause.clauses}
    entries = list(_entries(records, chosen))
    if not entries:
        raise ConfirmError("no failure needs an entry of this finding", "omit --finding, or name other clauses")
    version = confirmed.series[0].version
    versions = rewritten(f"=={version}", {version}, every_version(confirmed.judged))
    after = confirmed.text
    new: list[str] = []
    for entry in entries:
        place = _place(tomllib.loads(after).get("expectation", []), entry, cause.id, versions, alone=len(records) == 1)
        if place is None:
            words = {"finding": cause.id, "clause": entry.clause, "versions": versions}
            places = {key: word for key, word in (("device", entry.device), ("mode", entry.mode)) if word != "*"}
            new.append(table("expectation", {**words, **places, "cases": entry.cases, "signature": entry.signature}))
        else:
            cases = tuple(tomllib.loads(after)["expectation"][place]["cases"])
            after = edited(after, {place: (Part(versions, (*cases, *entry.cases)),)}, confirmed.judged)
    after = inserted(after, cause.id, cause.text, new)
    left = tuple(verdict for verdict in confirmed.unnamed if id(verdict) not in chosen)
    return ExpectationUpdate(after, confirmed, tuple(entry.line for entry in entries), left)


def _entries(records: Sequence[Record], chosen: Collection[int]) -> Iterator[_Entry]:
    """New entries for the chosen verdicts."""
    modes = [record.series.mode for record in records]
    places: dict[_Entry, list[str]] = {}
    for record in records:
        for entry in _of_record(record, chosen):
            places.setdefault(replace(entry, mode="*"), []).append(entry.mode)
    for entry, failing in places.items():
        if len(modes) > 1 and set(failing) == set(modes):
            yield entry
        else:
            yield from (replace(entry, mode=mode) for mode in failing)


def _of_record(record: Record, chosen: Collection[int]) -> Iterator[_Entry]:
    cases: dict[tuple[str, str], list[str]] = {}
    for verdict in record.verdicts:
        if id(verdict) in chosen:
            cases.setdefault((verdict.clause, verdict.signature), []).append(verdict.case)
    for (clause, signature), failing in cases.items():
        every = {verdict.case for verdict in record.verdicts if verdict.clause == clause}
        listed = () if every == set(failing) else tuple(sorted(failing))
        yield _Entry(clause, signature, record.series.device, record.series.mode, listed)


def _place(
    entries: Iterable[Mapping[str, Any]], new: _Entry, finding: str, versions: str, *, alone: bool
) -> int | None:
    """The existing entry to which the cases of a new one can be added, None if there is none."""
    for place, entry in enumerate(entries):
        same = (entry["finding"], entry["clause"], entry["signature"]) == (finding, new.clause, new.signature)
        mode = entry.get("mode", "*")
        here = entry.get("device", "*") in ("*", new.device) and (mode == new.mode or (alone and mode == "*"))
        here = here and entry.get("processor", "*") == "*"
        if same and here and entry["versions"] == versions and entry.get("cases") and new.cases:
            return place
    return None
