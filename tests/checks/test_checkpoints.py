"""Checkpoints of older versions, by a program that saves numbers as text."""

from pathlib import Path

import numpy as np
import pytest

from conformance.checks.checkpoints import SavedRun, find_difference, is_clear, saved_runs, write

PROGRAM = """
import numpy
FORMS = ("text", "binary")

def train(folder, form, *, writes):
    state = {"weight": 1.0, "moment": 0.0}
    for number in range(4):
        if writes and number == 2:
            (folder / form).write_text(repr(state), "utf-8")
        elif number == 2:
            state = eval((folder / form).read_text("utf-8"))
            LOADED
        state["moment"] = 0.5 * state["moment"] + state["weight"]
        state["weight"] -= 0.25 * state["moment"]
    return {name: [value] for name, value in state.items()}
"""
VERSION = np.__version__


def install(root: Path, loaded: str = "pass") -> Path:
    """Write the program below a root, with a statement after the load; return its path."""
    program = root / "frameworks" / "toy" / "checkpoints" / "plain" / "numpy.py"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(PROGRAM.replace("LOADED", loaded), "utf-8")
    return program


def test_saved_runs_are_of_one_mode_and_no_later_version(tmp_path: Path) -> None:
    archive = write(program := install(tmp_path), install(tmp_path).parent)
    assert archive.name == f"numpy-{VERSION}.zip"
    for version in ("1.0.0", "999.0"):
        (archive.parent / f"numpy-{version}.zip").write_bytes(archive.read_bytes())
    (archive.parent / "no_such_library.py").write_text("", "utf-8")
    found = saved_runs("toy", "plain", "eager", tmp_path)
    assert found == [SavedRun(program, archive.with_name(f"numpy-{version}.zip")) for version in ("1.0.0", VERSION)]
    assert [str(saved) for saved in found] == ["numpy-1.0.0", f"numpy-{VERSION}"]
    assert saved_runs("toy", "eager", "eager", tmp_path) == []


@pytest.mark.parametrize(
    ("loaded", "result"),
    [
        ("pass", ""),
        ("state['moment'] = 0.0", "weight: got 0.19140625, want -0.00390625"),
        ("state['moment'] *= 1 + 2.0**-30", ""),
        ("state.pop('moment')", "KeyError: 'moment'"),
        ("raise ValueError('written by version 1')", "ValueError: written by version 1"),
    ],
)
def test_resume_finds_what_a_load_loses(tmp_path: Path, loaded: str, result: str) -> None:
    archive = write(install(tmp_path), tmp_path)
    (folder := tmp_path / "unpacked").mkdir()
    wanted, resumed = SavedRun(install(tmp_path, loaded), archive).resume(folder)
    assert wanted.keys() == resumed.keys() == {"text", "binary"}
    for form, values in wanted.items():
        seen = resumed[form] if isinstance(resumed[form], str) else find_difference(resumed[form], values)
        assert seen == result


@pytest.mark.parametrize(
    ("refusal", "clear"),
    [
        ("ValueError: written by version 1, want 2", True),
        ("RuntimeError: the format of this file is not known", True),
        ("KeyError: 'version'", False),
        ("RuntimeError: Missing key in checkpoint state_dict: optimizer.param_groups.0.decoupled_weight_decay", False),
        ("ModuleNotFoundError: No module named 'a.checkpoint'", False),
    ],
)
def test_is_clear_names_a_version_or_a_format(refusal: str, clear: bool) -> None:
    assert is_clear(refusal) == clear


def test_resume_of_a_program_that_fails_raises(tmp_path: Path) -> None:
    archive = write(program := install(tmp_path), tmp_path)
    program.write_text("raise ImportError('gone')", "utf-8")
    with pytest.raises(RuntimeError, match="ImportError: gone"):
        SavedRun(program, archive).resume(tmp_path)
