"""Records from a stranger: each is read or refused in one line within bounds, and acts on nothing."""

import gzip
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conformance import cli
from results.compare.comparison import compare
from results.record import files
from results.record.folders import find, listed
from results.record.journal import Journal
from results.record.reading import MAX_SIGNS, SIGNS, CheckResult, load, to_json, write
from results.show import digest, portability
from results.show.table import plain
from tests.support.hostile import OVERSIZED, call, mutants, refused
from tests.support.recorded import filled, header
from tests.support.small_record import BASE, verdict
from tests.support.suite_runs import ROOT, Ended, conformance, environment, hang_limit

COUNT = 200
MEMORY, SECONDS = 10**9, 5.0
OWN_MODULES = {*sys.stdlib_module_names, "conformance", "frameworks", "results", "fixtures", "numpy", "rich", "click"}
"""Packages that a command may import while it reads a record, whatever the record contains."""


def shown(ended: Ended, *statuses: int) -> str:
    """Asserts that a command succeeded and printed lines of visible characters; returns them."""
    assert ended.status in (statuses or (0,))
    assert ended.errors == ""
    return visible(ended.output)


def visible(text: str) -> str:
    """Asserts that a text has no character that acts on a terminal but the line break; returns the text."""
    assert text.replace("\n", "").replace("\u200b", "").isprintable(), "\u200b keeps Markdown from linking"
    return text


def test_load_damaged_record_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    folder, good = tmp_path / "damaged", tmp_path / "good.json"
    folder.mkdir()
    journal = filled(Journal.create(good, header()), 1)
    content = journal.path.read_bytes()
    journal.finish()
    before, imported = sorted(tmp_path.rglob("*")), set(sys.modules)
    counts: Counter[bool] = Counter()
    for number, (ending, damaged) in enumerate(mutants(good.read_bytes(), content, COUNT, 0)):
        path = folder / f"damaged{ending}"
        path.write_bytes(damaged)
        pair = (path, good) if number % 2 else (good, path)
        style = ("table", "markdown", "json")[number % 3]
        ended = call(cli.main, "compare", *pair, "--format", style)
        counts[ended.errors == ""] += 1
        if ended.errors:
            refused(ended, path)
            refused(call(cli.main, "table", path), path)
        else:
            shown(ended, 0, 1, 2)
            record = load(path)
            write(path.with_suffix(".json"), record)
            assert to_json(load(path.with_suffix(".json"))) == to_json(record)
            assert "clauses" in visible(plain([record], 20 + number % 150))
            assert "clause" in visible("\n".join(portability.listed([record, load(good)])))
            assert "## Conformance" in visible(digest.markdown([record]))
        for left in folder.iterdir():
            left.unlink()
    assert min(counts.values()) > COUNT // 10, "too few are read, or refused, to show anything"
    assert sorted(tmp_path.rglob("*")) == before, "no file but the one that a command names is written"
    assert {name.partition(".")[0] for name in set(sys.modules) - imported} <= OWN_MODULES


_READER = """
import json, os, resource, sys
from pathlib import Path
from results.record.reading import RecordError, load

for line in sys.stdin:
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        resource.setrlimit(resource.RLIMIT_AS, (6 * 10**9, 6 * 10**9))
        try:
            message = f"read, {len(load(Path(line.removesuffix(chr(10)))).verdicts)} verdicts"
        except RecordError as error:
            message = str(error)
        used = resource.getrusage(resource.RUSAGE_SELF)
        peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
        print(json.dumps([int(peak.split()[1]) * 1024, used.ru_utime + used.ru_stime, message]), flush=True)
        os._exit(0)
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(f"the reader ended with {status}")
"""


@pytest.fixture(scope="module")
def reader() -> Iterator[subprocess.Popen[str]]:
    """A process that reads each file in a copy of itself, which has nothing of the files before."""
    argv, pipe = [sys.executable, "-c", _READER], subprocess.PIPE
    with subprocess.Popen(argv, cwd=ROOT, env=environment(), stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.communicate(timeout=hang_limit())


def cost(reader: subprocess.Popen[str], path: Path) -> tuple[int, float, str]:
    """Peak bytes and seconds of processor time of reading a file, and the outcome."""
    assert reader.stdin is not None
    assert reader.stdout is not None
    print(path, file=reader.stdin, flush=True)
    memory, seconds, message = json.loads(reader.stdout.readline())
    return memory, seconds, message


@pytest.mark.parametrize("name", OVERSIZED)
def test_load_oversized_file_ends_in_bounds(reader: subprocess.Popen[str], name: str, tmp_path: Path) -> None:
    path = tmp_path / ("large.jsonl" if name.startswith("journal") else "large.json")
    content = OVERSIZED[name]()
    if path.suffix == ".jsonl":
        journal = Journal.create(tmp_path / "small.json", header())
        content = journal.path.read_bytes() + content
        journal.close()
    path.write_bytes(content)
    for _ in range(3):
        memory, seconds, message = cost(reader, path)
        if seconds <= SECONDS:
            break
    assert "\n" not in message
    assert (memory <= MEMORY, seconds <= SECONDS) == (True, True), (memory, seconds, message)


def test_load_large_record_takes_a_multiple_of_its_size(reader: subprocess.Popen[str], tmp_path: Path) -> None:
    record = load(listed(ROOT / "results" / "baselines")[-1])
    copies = (replace(one, test=f"{one.test}#{copy}") for copy in range(4) for one in record.verdicts)
    path = tmp_path / "large.json"
    write(path, replace(record, verdicts=tuple(copies)))
    size = path.stat().st_size
    assert size > 5 * 2**20
    assert cost(reader, path)[0] < 60 * 2**20 + 12 * size, "peak bytes"


def test_load_small_file_of_many_values_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "small.json.gz"
    path.write_bytes(gzip.compress(OVERSIZED["empty lists"](), 6))
    assert path.stat().st_size < 100_000
    refused(call(cli.main, "table", path), path)


def test_limits_are_twice_the_committed_records() -> None:
    for path in find([ROOT / "results" / "baselines"]):
        content = files.read(path)
        assert 2 * len(content) < files.MAX_BYTES, path.name
        assert 2 * (len(content) - len(content.translate(None, SIGNS))) < MAX_SIGNS, path.name


def test_compare_many_checks_of_one_name_is_linear() -> None:
    checks = tuple(CheckResult("distance", float(i), 1.0, None, True) for i in range(40_000))
    many = verdict(BASE, 0, checks=checks)
    changed = verdict(many, 0, checks=(*checks[:-1], replace(checks[-1], bound=2.0)))
    assert len(compare(many, changed).changes) == 1


def test_messages_have_no_character_that_acts_on_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "a\n\x1b[31m\udcff\u202e.json"
    write(path, BASE)
    assert shown(call(cli.main, "compare", tmp_path, path, "--format", "json"))
    path.write_bytes(b"{")
    ended = call(cli.main, "compare", path, path)
    assert (ended.status, ended.errors[-1:]) == (2, "\n")
    assert ended.errors[:-1].isprintable()


def test_compare_prints_question_marks_where_the_terminal_lacks_characters(tmp_path: Path) -> None:
    for name, version in (("old", "2.13.0"), ("new", "ü")):
        write(tmp_path / f"{name}.json", replace(BASE, variant=replace(BASE.variant, framework_version=version)))
    ended = conformance("compare", tmp_path / "old.json", tmp_path / "new.json", PYTHONIOENCODING="ascii")
    assert (ended.status, ended.errors) == (0, "")
    assert "2.13.0 ? ?" in ended.output


@pytest.mark.parametrize("output", ["records", "no/such/folder/page", "/", "", "/dev/full/x", "x" * 300])
def test_output_that_cannot_be_written_is_refused(output: str, tmp_path: Path) -> None:
    good = tmp_path / "records" / "good.json"
    good.parent.mkdir()
    write(good, BASE)
    target = tmp_path / output if output else Path()
    before = sorted(tmp_path.rglob("*"))
    refused(call(cli.main, "compare", good, good, "--output", target), Path(str(target)[:100]))
    assert sorted(tmp_path.rglob("*")) == before
