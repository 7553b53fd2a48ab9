"""Files of a run: caches and temporary folders."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from frameworks.cache_folder import CACHE_FOLDER, cache_folder, prune
from frameworks.installer import install
from results.record.model import Outcome
from results.record.reading import load
from tests.support.suite_runs import ROOT, WORKERS, copy_checkout, judge, outcomes_by_case

STEP = """
import hashlib, sys
import jax
from frameworks.cache_folder import PROGRAMS
from frameworks.jax import JaxFramework
from fixtures.data import digits_batch
from fixtures.models import digits_mlp
from fixtures.recipe import Recipe
run = JaxFramework("cpu").trainer(digits_mlp((16,)), Recipe())
losses = [run.update((digits_batch(8),)).loss for _ in range(3)]
digest = hashlib.sha256(b"".join(array.tobytes() for array in run.parameters().values())).hexdigest()
print(losses, digest, jax.config.jax_compilation_cache_dir)
print(PROGRAMS.asked, PROGRAMS.hits)
"""
SUITE = """
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


def write_file(path: Path, size: int, used: int) -> Path:
    """A file of so many bytes that was last used at a time in seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (used, used))
    return path


def test_cache_folder_is_that_of_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv(CACHE_FOLDER, "")
    assert cache_folder() == ROOT / "results" / "cache"


def test_prune_removes_the_least_recently_used_files(tmp_path: Path) -> None:
    paths = [write_file(tmp_path / str(used % 2) / str(used), 100, used) for used in (5, 1, 4, 2, 3)]
    prune(tmp_path, 500)
    assert all(path.is_file() for path in paths)
    prune(tmp_path, 499)
    assert sorted(int(path.name) for path in paths if path.is_file()) == [4, 5]


def run_steps(cache: Path, **variables: str) -> tuple[str, str, list[int]]:
    """Runs three updates in a new process: what they print, the folder of programs, requests and hits."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment = {**inherited, CACHE_FOLDER: str(cache), "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run([sys.executable, "-c", STEP], env=environment, capture_output=True, text=True, check=True)
    *_, result, counts = done.stdout.splitlines()
    numbers, _, folder = result.rpartition(" ")
    return numbers, folder, [int(count) for count in counts.split()]


def test_stored_programs_give_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    cold, folder, (requests, _) = run_steps(tmp_path)
    programs = sorted(Path(folder).glob("*-cache"))
    assert Path(folder).parent == tmp_path / "jax"
    assert programs
    assert run_steps(tmp_path) == (cold, folder, [requests, requests])
    assert requests > 0
    assert sorted(Path(folder).glob("*-cache")) == programs
    for number, path in enumerate(programs):
        content = path.read_bytes()
        path.write_bytes((b"", content[: len(content) // 2], content[:-9] + bytes(9))[number % 3])
    assert run_steps(tmp_path)[:2] == (cold, folder)


def test_stored_programs_in_the_users_folder_or_none_give_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    users_folder = tmp_path / "own"
    numbers, folder, _ = run_steps(tmp_path / "cache", JAX_COMPILATION_CACHE_DIR=str(users_folder))
    assert folder == str(users_folder)
    assert not (tmp_path / "cache" / "jax").exists()
    write_file(tmp_path / "file", 1, 1)
    assert run_steps(tmp_path / "file")[:2] == (numbers, "None")


def test_build_of_another_compiler_has_another_name(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    from frameworks.jax.core.settings import build, libraries

    first, second = write_file(tmp_path / "a.so", 9, 5), write_file(tmp_path / "b.so", 9, 5)
    known = tmp_path / "builds"
    name = build([first, second], known)
    assert build([first, second], known) == name
    (damaged, _) = sorted(known.iterdir())
    damaged.write_text("")
    assert build([first, second], known) == name
    second.write_bytes(b"of the size")
    assert build([first, second], known) != name
    assert any(path.stat().st_size > 2**26 for path in libraries())


def test_run_removes_files_of_tests_and_of_a_killed_worker(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    root, record = copy_checkout(tmp_path / "checkout", leaving=SUITE), tmp_path / "run.json"
    arguments = ("--framework=reference", f"--record={record}", *WORKERS, "--numprocesses=1")
    completed = judge(*arguments, root=root, TMPDIR=str(tmp_path / "temporary"))
    result = outcomes_by_case(load(record))
    assert result["test_that_leaves_a_folder"] is Outcome.PASS, completed.lines
    assert result["test_that_dies"] is Outcome.CRASH, completed.lines
    assert list((tmp_path / "temporary").iterdir()) == []


def test_run_removes_the_directory_of_a_killed_run(tmp_path: Path) -> None:
    root, temporary = copy_checkout(tmp_path / "checkout", leaving=SUITE), tmp_path / "temporary"
    temporary.mkdir()
    arguments = ("--framework=reference", "-p", "no:faulthandler")
    assert judge(*arguments, root=root, TMPDIR=str(temporary)).status == -signal.SIGABRT
    (remaining,) = temporary.iterdir()
    judge(*arguments, "-k", "folder", root=root, TMPDIR=str(temporary))
    assert list(temporary.iterdir()) == [], remaining


@pytest.mark.parametrize("framework", ["reference", *install.DISTRIBUTIONS])
def test_run_of_saved_and_quantized_models_leaves_no_file(framework: str, tmp_path: Path) -> None:
    if framework != "reference" and install.installed_version(framework) is None:
        pytest.skip(f"{framework} is not installed")
    result = judge(f"--framework={framework}", *SAVING, TMPDIR=str(tmp_path))
    assert result.status in (0, 1), result.lines
    assert " pass" in result.output, result.lines
    assert list(tmp_path.iterdir()) == []
