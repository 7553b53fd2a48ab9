"""What benchmarks share: files of samples, and processes to measure in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.benchmarks.kit.processes import RunError, failed, python
from tools.benchmarks.kit.samples import Origin, Store


@dataclass(frozen=True)
class Sides:
    """Two sides of one case."""

    case: str
    times: tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Sample(Origin):
    """Some samples."""

    tick_s: float
    cases: tuple[Sides, ...]


SAMPLE = Sample(
    "some", "1", "cpu eager", "a machine", "now", 1e-7, (Sides("a", ((1, 2), (3, 4))), Sides("b", ((), ())))
)


def test_samples_are_read_as_they_were_written_a_row_a_line(tmp_path: Path) -> None:
    store = Store(tmp_path / "samples", Sample, "cases")
    assert store.all() == []
    store.save(SAMPLE, "some")
    assert store.load("some") == SAMPLE
    assert store.all() == [SAMPLE]
    head, *rows, _ = store.path("some").read_text("utf-8").splitlines()
    assert head.endswith('"tick_s": 1e-07, "cases": [')
    assert rows == ['{"case":"a","times":[[1,2],[3,4]]},', '{"case":"b","times":[[],[]]}']
    assert (SAMPLE.label, SAMPLE.taken) == ("some 1, cpu eager", "some: now; a machine")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"cases": 3}', '{"cases": [{"case": 4}]}', "\udcff", "[[1"])
def test_a_file_without_samples_is_refused_by_name(content: str, tmp_path: Path) -> None:
    (tmp_path / "some.json").write_text(content, "utf-8", "surrogateescape")
    with pytest.raises(ValueError, match=r"some\.json has no valid samples"):
        Store(tmp_path, Sample, "cases").load("some")


def test_a_process_that_failed_is_one_line() -> None:
    ended = python("-c", "import sys; print('first'); sys.exit('the reason')")
    assert isinstance(failed(ended), RunError)
    assert str(failed(ended)) == "a process exited with 1: the reason"
    assert "no output" in str(failed(python("-c", "raise SystemExit(3)")))


def test_a_measured_process_has_one_thread_and_equal_hashes() -> None:
    program = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['PYTHONHASHSEED'], os.environ['MORE'])"
    assert python("-c", program, more={"MORE": "x"}).stdout.split() == ["1", "0", "x"]
