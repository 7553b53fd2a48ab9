"""Two hundred damaged records: each is read or refused in one line, and what is read can be shown in every way."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from conformance import cli
from results.compare.pairing import compare_sets
from results.record.journal import Journal
from results.record.lines import decode_line, encode_line
from results.record.reading import Record, load, to_json, write
from results.show import differences, findings
from results.show.differences import document, draw
from results.show.portability import listed
from results.show.table import plain
from tests.support.hostile import mutants
from tests.support.recorded import filled, header
from tests.support.suite_runs import Ended

COUNT = 200
DRAWN = 0.04
"""How many of the records that are read are drawn as a page as well."""

UNRELIABLE = "cannot be judged"


@dataclass(frozen=True)
class Place:
    """Where records are tried: a folder for the damaged ones, and what they are made from."""

    folder: Path
    record: Path
    journal: bytes


@pytest.fixture
def place(tmp_path: Path) -> Place:
    journal = filled(Journal.create(tmp_path / "good.json", header()), 1)
    entries = [decode_line(line) for line in journal.path.read_bytes().splitlines()]
    again = b"".join(encode_line({**entry, "at": float(at)}) for at, entry in enumerate(entries) if entry)
    record = journal.finish()
    write(record, replace(load(record), finished=header().started, duration_s=1.0))
    (tmp_path / "damaged").mkdir()
    return Place(tmp_path / "damaged", record, again)


def call(main: Callable[[list[str]], int], *words: str | Path) -> Ended:
    """What a command says in this process; a warning is an error."""
    output, errors = StringIO(), StringIO()
    with warnings.catch_warnings(), redirect_stdout(output), redirect_stderr(errors):
        warnings.simplefilter("error")
        status = main([str(word) for word in words])
    return Ended(status, output.getvalue(), errors.getvalue())


def refused(ended: Ended, path: Path) -> None:
    """It says in one line which file is at fault, and nothing else."""
    assert (ended.status, ended.output) == (2, "")
    assert ended.errors.endswith("\n")
    assert len(ended.errors.splitlines()) == 1, ended.errors
    assert str(path) in ended.errors


def checked_text(text: str) -> str:
    """The text, which has to consist of lines of visible characters."""
    assert text.replace("\n", "").replace("\u200b", "").isprintable(), "\u200b keeps Markdown from linking"
    return text


def said(ended: Ended, *statuses: int) -> str:
    """What a command printed that did what it was asked to."""
    assert ended.status in (statuses or (0,))
    assert ended.errors == ""
    return checked_text(ended.output)


def tried(place: Place, path: Path, number: int, drawn: bool) -> bool:
    """Whether a record can be read; every command has to agree."""
    pair = [path, place.record] if number % 2 else [place.record, path]
    valid = call(cli.main, "validate", path)
    if valid.status:
        refused(valid, path)
        refused(call(cli.main, "compare", *pair), path)
        return False
    assert f"{path}: a valid record, " in said(valid)
    record = load(path)
    written(path.with_name("again"), record)
    compared(pair, number)
    assert "clauses" in checked_text(plain([record], 20 + number % 150))
    assert "clause" in checked_text("\n".join(listed([record, load(place.record)])))
    assert "### " in checked_text(findings.markdown([record]))
    if path.suffix != ".json" and number % 4 == 0:
        copy = shutil.copy(path, path.with_name("kept.jsonl"))
        said(call(cli.main, "recover", copy))
        for left in path.parent.glob("kept.*"):
            left.unlink()
    if drawn:
        page = path.with_name("page.html")
        assert "1 records" in said(call(cli.main, "report", path, "--against", place.record, "--output", page))
        assert page.read_text("utf-8").rstrip().endswith("</html>")
        page.unlink()
    return True


def written(path: Path, record: Record) -> None:
    """What was read can be written and read again, and is the same then."""
    content = to_json(record)
    path.write_bytes(content)
    assert to_json(load(path)) == content
    path.unlink()


def compared(pair: list[Path], number: int) -> None:
    """A comparison in every form: one by the command, which has to say what the functions behind it say."""
    result = compare_sets(*([load(path)] for path in pair))
    console = Console(file=StringIO(), width=100)
    draw(result, console)
    forms = {
        "table": console.file.getvalue(),
        "markdown": differences.markdown(result),
        "json": json.dumps(document(result), allow_nan=False),
    }
    for form in ("table", "markdown"):
        assert (UNRELIABLE in checked_text(forms[form])) == (result.status == 2)
    assert json.loads(forms["json"])["status"] == result.status
    style = tuple(forms)[number % 3]
    output = said(call(cli.main, "compare", *pair, "--format", style), result.status)
    assert output == forms[style] if style == "markdown" else UNRELIABLE in output or result.status < 2


def test_every_damaged_record_is_read_or_refused(place: Place) -> None:
    rng = random.Random(0)
    drawable = find_spec("jinja2") is not None
    counts: Counter[bool] = Counter()
    for number, (ending, content) in enumerate(mutants(place.record.read_bytes(), place.journal, COUNT, 0)):
        path = place.folder / f"damaged{ending}"
        path.write_bytes(content)
        try:
            counts[tried(place, path, number, drawable and rng.random() < DRAWN)] += 1
        except BaseException as error:
            error.add_note(f"record {number}: {content[:9000]!r}")
            raise
        path.unlink()
    assert min(counts[True], counts[False]) > COUNT // 10, "too few are read, or refused, to show anything"
