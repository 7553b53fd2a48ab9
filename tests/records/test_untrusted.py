"""What random damage does not reach: sizes, names, files that are none, folders of records, and earlier finds."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance import cli
from results.compare.comparison import compare
from results.compare.ratio import ratio
from results.record.fingerprints import Fingerprint
from results.record.journal import Journal
from results.record.lines import decode_line, encode_line
from results.record.reading import CheckResult, Outcome, Tensors, from_json, load, to_json, write
from results.record.schema import SCHEMA_VERSION
from results.record.texts import Consequence, FindingKind, FindingText
from tests.records.test_fuzz import call, refused, said
from tests.support.recorded import CLAUSE, filled, header
from tests.support.small_record import BASE, verdict
from tests.support.suite_runs import conformance

ESCAPING = os.fsdecode(b"a\n\x1b[31m\xff\xe2\x80\xae.json")
"""A file name with a line break, an escape sequence, a byte that is no UTF-8 and a mark that reverses the text."""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    folder = tmp_path / "records"
    folder.mkdir()
    write(folder / "good.json", BASE)
    return folder / "good.json"


def journal(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A journal every whole line of which has been changed so."""
    made = filled(Journal.create(path, header()), 1)
    entries = [decode_line(line) for line in made.path.read_bytes().splitlines()]
    entries.append({"kind": "end", "at": 9.0, "status": "complete", "finished": header().started})
    made.close()
    for entry in filter(None, entries):
        change(entry)
    made.path.write_bytes(b"".join(encode_line(entry) for entry in entries if entry))
    return made.path


def deepened(entry: dict[str, Any]) -> None:
    """An observation as deep as a line may be, and one deeper than a record may be."""
    if entry["kind"] == "judged":
        entry["judged"]["observations"][0]["value"] = nested(57)
        entry["judged"]["verdict"]["checks"][0]["derivation"] = {"deep": nested(55)}


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (deepened, "nested more than 56 deep"),
        (lambda entry: entry.update(at="inf"), "want a number of seconds"),
        (lambda entry: entry.update(at=True), "want a number of seconds"),
        (lambda entry: entry.get("header", {}).update(seed=1e308), "Expected `int`"),
    ],
)
def test_a_journal_that_could_not_be_written_again_is_refused(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    said(call(cli.main, "recover", journal(tmp_path / "whole.json", lambda entry: entry)))
    path = journal(tmp_path / "x.json", change)
    for command in ("validate", "recover"):
        ended = call(cli.main, command, path)
        refused(ended, path)
        assert message in ended.errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda entry: entry.update(notes=5), "is not a journal entry (Value after * must be an iterable, not int)"),
        (lambda entry: entry.pop("at"), "is not a journal entry: it lacks 'at'"),
    ],
)
def test_a_journal_with_a_damaged_line_is_refused_for_a_wrong_one(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    path = journal(tmp_path / "x.json", lambda entry: entry["kind"] == "end" and change(entry))
    path.write_bytes(b"damaged\n" + path.read_bytes())
    ended = call(cli.main, "validate", path)
    refused(ended, path)
    assert message in ended.errors


@pytest.mark.parametrize(("version", "message"), [(SCHEMA_VERSION + 1, "update this one"), (0, "again")])
def test_a_record_of_another_version_says_what_to_do(version: int, message: str, good: Path) -> None:
    text = good.read_text("utf-8")
    good.write_text(text.replace(f'"schema_version": {SCHEMA_VERSION}', f'"schema_version": {version}'), "utf-8")
    ended = call(cli.main, "compare", good, good)
    refused(ended, good)
    assert "is a record of another version" in ended.errors
    assert message in ended.errors


def test_many_checks_of_one_name_are_compared_in_no_time() -> None:
    checks = tuple(CheckResult("distance", float(i), 1.0, None, True) for i in range(40_000))
    many = verdict(BASE, 0, checks=checks)
    begun = time.process_time()
    assert compare(many, verdict(many, 0, checks=(*checks[:-1], replace(checks[-1], bound=2.0)))).changes
    assert time.process_time() - begun < 8, "seconds; it takes a quarter of one, and a square of the number a minute"


def test_many_samples_take_no_memory() -> None:
    samples = tuple(1.0 + (i % 7) / 100 for i in range(100_000))
    assert ratio(samples, samples[::-1]).pairs == len(samples)


# ---------------------------------------------------------------- files that are none


def looped(path: Path) -> None:
    path.symlink_to(path)


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a link to itself": looped,
    "a link to nothing": lambda path: path.symlink_to(path.with_name("nothing")),
    "cut in the middle": lambda path: path.write_bytes(to_json(BASE)[:1000]),
    "empty": Path.touch,
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_folder_with_a_broken_record_is_refused_by_the_name_of_that_record(kind: str, good: Path) -> None:
    broken, folder = good.with_name("broken.json"), good.parent
    UNREADABLE[kind](broken)
    open_before = len(os.listdir("/proc/self/fd"))
    for path in (folder, broken):
        if path == broken and broken.is_dir():
            continue
        refused(call(cli.main, "compare", good, path), broken)
        refused(call(cli.main, "compare", path, good), broken)
        refused(call(cli.main, "table", path), broken)
        refused(call(cli.main, "export", "--format", "findings", path), broken)
    assert len(os.listdir("/proc/self/fd")) == open_before, "a file stays open"


def test_a_report_of_a_folder_with_a_broken_record_is_refused_and_the_old_page_stays(good: Path) -> None:
    pytest.importorskip("jinja2")
    page = good.with_name("page.html")
    page.write_text("old", "utf-8")
    good.with_name("broken.json").write_text("{", "utf-8")
    refused(call(cli.main, "report", good.parent, "--output", page), good.with_name("broken.json"))
    assert page.read_text("utf-8") == "old"


@pytest.mark.parametrize("name", ["x" * 300 + ".json", "no/such/folder.json"])
def test_a_name_that_cannot_be_opened_is_refused(name: str, good: Path) -> None:
    path = good.with_name("x") / name
    ended = call(cli.main, "compare", good, path)
    assert (ended.status, len(ended.errors.splitlines())) == (2, 1)
    assert str(path)[:100] in ended.errors


def test_a_file_without_permission_is_refused(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("results.record.files.os.open", forbidden)
    ended = call(cli.main, "compare", good, good)
    refused(ended, good)
    assert "permission" in ended.errors


def test_a_journal_whose_last_line_is_cut_is_an_interrupted_run(tmp_path: Path) -> None:
    whole = journal(tmp_path / "whole.json", lambda entry: entry)
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(whole.read_bytes()[:-9])
    assert "interrupted" in said(call(cli.main, "table", cut))
    assert "1 of 4 lines of the journal were cut short" in said(call(cli.main, "table", cut, "--width", "200"))
    output = said(call(cli.main, "compare", whole, cut), 2)
    assert "the new run was interrupted; run it again to its end" in output


# ---------------------------------------------------------------- names that act, output that cannot be written


def test_a_file_name_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / ESCAPING
    write(path, BASE)
    assert len(said(call(cli.main, "validate", path)).splitlines()) == 1
    assert said(call(cli.main, "compare", tmp_path, path, "--format", "json"))
    path.write_bytes(b"{")
    ended = call(cli.main, "compare", path, path)
    assert (ended.status, len(ended.errors.splitlines())) == (2, 1)
    assert ended.errors.removesuffix("\n").isprintable()


def test_the_name_of_a_page_cannot_act_on_the_terminal(good: Path) -> None:
    pytest.importorskip("jinja2")
    output = said(call(cli.main, "report", good, "--output", good.with_name(ESCAPING)))
    assert len(output.splitlines()) == 1


def test_what_the_terminal_cannot_show_is_a_question_mark(good: Path) -> None:
    other = good.with_name("other.json")
    write(other, replace(BASE, variant=replace(BASE.variant, framework_version="ü")))
    ended = conformance("compare", good, other, PYTHONIOENCODING="ascii")
    assert (ended.status, ended.errors) == (0, "")
    assert "2.13.0 ? ?" in ended.output


@pytest.mark.parametrize("command", ["compare", "report"])
@pytest.mark.parametrize("output", ["records", "no/such/folder/page", "/", "", "/dev/full/x", "x" * 300])
def test_output_that_cannot_be_written_is_told(command: str, output: str, good: Path) -> None:
    if command == "report":
        pytest.importorskip("jinja2")
    words = [good, good] if command == "compare" else [good]
    target = good.parent.parent / output if output else Path()
    before = sorted(good.parent.parent.rglob("*"))
    ended = call(cli.main, command, *words, "--output", target)
    refused(ended, Path(str(target)[:100]))
    assert sorted(good.parent.parent.rglob("*")) == before


def test_a_written_comparison_replaces_the_old_one_whole(good: Path) -> None:
    target = good.parent.parent / "told.md"
    target.write_text("old", "utf-8")
    assert call(cli.main, "compare", good, good, "--format", "markdown", "--output", target).status == 0
    assert target.read_text("utf-8").startswith("**Conformance: nothing is worse: identical.**")


@pytest.mark.parametrize(
    "date",
    [
        "9999-99-99T99:99:99Z",
        "2026-02-30T00:00:00Z",
        "2025-02-29T00:00:00+00:00",
        "2026-01-02T24:00:01Z",
        "2026-01-02T03:04:60Z",
        "2026-01-02T03:04:05+24:00",
        "0000-01-01T00:00:00Z",
        "2026-01-02T03:04:05Z\n",
        "2026-01-02T03:04:05",
    ],
)
@pytest.mark.parametrize("field", ["started", "finished"])
def test_a_date_that_does_not_exist_is_refused(field: str, date: str, good: Path) -> None:
    good.write_text(json.dumps({**json.loads(good.read_bytes()), field: date}), "utf-8")
    refused(call(cli.main, "table", good), good)


@pytest.mark.parametrize("date", ["2024-02-29T23:59:59.5Z", "2026-01-02T03:04:05-11:30"])
def test_a_date_that_exists_is_read(date: str, good: Path) -> None:
    good.write_text(json.dumps({**json.loads(good.read_bytes()), "started": date}), "utf-8")
    assert load(good).started == date


@pytest.mark.parametrize("place", ["clause", "finding", "digest", "sample"])
def test_no_name_ends_in_a_line_break(place: str) -> None:
    texts = {"known-one": FindingText(FindingKind.DEFECT, Consequence.ERROR, "It raises.", "none found", "")}
    known = replace(BASE.verdicts[0], outcome=Outcome.KNOWN, finding="known-one")
    print_ = Fingerprint("parameter/w", "float32", (1,), "0" * 16, 1.0, "AACAPw==")
    tensors = (Tensors("first", "test_a", (print_,)),)
    content = to_json(replace(BASE, findings=texts, verdicts=(known, *BASE.verdicts[1:]), tensors=tensors)).decode()
    names = {"clause": CLAUSE, "finding": "known-one", "digest": "0" * 16, "sample": "AACAPw=="}
    assert f'"{names[place]}"' in content
    with pytest.raises(ValueError, match="matching regex"):
        from_json(content.replace(f'"{names[place]}"', f'"{names[place]}\\n"').encode())
