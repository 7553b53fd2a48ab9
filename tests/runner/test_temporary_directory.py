"""A run leaves nothing in the temporary directory, whatever the framework and the end of the run."""

import signal
from pathlib import Path

import pytest

from frameworks.installer import install
from results.record.model import Outcome
from results.record.reading import load
from tests.support.suite_runs import WORKERS, by_case, checkout, judge

SUITE = """
import os
import tempfile

from conformance.checks.api import clause


@clause("scaling.automaton")
def test_that_leaves_a_folder() -> None:
    tempfile.mkdtemp()


@clause("scaling.automaton")
def test_that_dies() -> None:
    tempfile.mkstemp()
    os.abort()
"""


SAVING = (
    "conformance/suites/resume/test_resume.py::test_run_resumes_in_new_process",
    "conformance/suites/resume/test_resume.py::test_dropout_stream_resumes",
    "conformance/suites/formats/test_post_training_saving.py::test_quantized_model_survives_saving",
)


def test_files_of_a_test_and_of_a_killed_worker_are_removed(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    root, record = checkout(tmp_path / "checkout", leaving=SUITE), tmp_path / "run.json"
    words = ("--framework=reference", f"--record={record}", *WORKERS, "--numprocesses=1")
    ended = judge(*words, root=root, TMPDIR=str(tmp_path / "temporary"))
    result = by_case(load(record))
    assert result["test_that_leaves_a_folder"] is Outcome.PASS, ended.lines
    assert result["test_that_dies"] is Outcome.CRASH, ended.lines
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_killed_runs_directory_is_removed_by_the_next(tmp_path: Path) -> None:
    root, temporary = checkout(tmp_path / "checkout", leaving=SUITE), tmp_path / "temporary"
    temporary.mkdir()
    words = ("--framework=reference", "-p", "no:faulthandler")
    assert judge(*words, root=root, TMPDIR=str(temporary)).status == -signal.SIGABRT
    (left,) = temporary.iterdir()
    judge(*words, "-k", "folder", root=root, TMPDIR=str(temporary))
    assert list(temporary.iterdir()) == [], left


@pytest.mark.parametrize("framework", ["reference", *install.DISTRIBUTIONS])
def test_a_run_of_saved_and_quantized_models_leaves_nothing(framework: str, tmp_path: Path) -> None:
    if framework != "reference" and install.installed_version(framework) is None:
        pytest.skip(f"{framework} is not installed")
    ended = judge(f"--framework={framework}", *SAVING, TMPDIR=str(tmp_path))
    assert ended.status in (0, 1), ended.lines
    assert " pass" in ended.output, ended.lines
    assert list(tmp_path.iterdir()) == []
