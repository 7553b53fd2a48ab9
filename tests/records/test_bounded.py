"""Any record file is read or refused within 1 GB and 5 s of processor time; the best of three reads counts."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from results.record.files import MAX_BYTES, read
from results.record.folders import find
from results.record.reading import MAX_SIGNS, SIGNS, RecordError, load
from tests.support.hostile_files import NAMES, make
from tests.support.suite_runs import ROOT, environment, hang_limit

MEMORY, SECONDS = 10**9, 5.0
_READER = """
import json, os, resource, sys
from pathlib import Path
from results.record.reading import RecordError, load

def read(path):
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    resource.setrlimit(resource.RLIMIT_AS, (6 * 10**9, 6 * 10**9))
    try:
        said = f"read, {len(load(path).verdicts)} verdicts"
    except RecordError as error:
        said = str(error)
    used = resource.getrusage(resource.RUSAGE_SELF)
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(json.dumps([int(peak.split()[1]) * 1024, used.ru_utime + used.ru_stime, said]), flush=True)

for line in sys.stdin:
    child = os.fork()
    if not child:
        read(Path(line.removesuffix("\\n")))
        os._exit(0)
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(f"the reader ended with {status}")
"""


@pytest.fixture(scope="module")
def reader() -> Iterator[subprocess.Popen[str]]:
    """A process that reads each file that it is told in a copy of itself, which has nothing of the files before."""
    words, pipe = [sys.executable, "-c", _READER], subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, env=environment(), stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.communicate(timeout=hang_limit())


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_read_or_refused_in_bounds(reader: subprocess.Popen[str], name: str, tmp_path: Path) -> None:
    path = make(name, tmp_path)
    assert reader.stdin is not None
    assert reader.stdout is not None
    for _ in range(3):
        print(path, file=reader.stdin, flush=True)
        memory, seconds, said = json.loads(reader.stdout.readline())
        if seconds <= SECONDS:
            break
    path.unlink()
    assert "\n" not in said
    assert (memory <= MEMORY, seconds <= SECONDS) == (True, True), (memory, seconds, said)


def test_a_small_file_of_many_values_is_refused_before_they_are_made(tmp_path: Path) -> None:
    path = make("empty lists", tmp_path)
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert packed.stat().st_size < 100_000
    with pytest.raises(RecordError, match="has too many values"):
        load(packed)


def test_records_have_room_to_grow() -> None:
    for path in find([ROOT / "results" / "baselines"]):
        content = read(path)
        assert 2 * len(content) < MAX_BYTES, path.name
        assert 2 * (len(content) - len(content.translate(None, SIGNS))) < MAX_SIGNS, path.name
