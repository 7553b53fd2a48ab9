"""Mutants of the reference by cosmic-ray: what is mutated is a copy that imports itself, and bad words are refused."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from tools.faults import mutation


def test_the_copy_of_the_reference_imports_its_own_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mutation.copy(tmp_path / mutation.SUBJECT)
    monkeypatch.syspath_prepend(tmp_path)
    subject = import_module(mutation.SUBJECT).ReferenceFramework("cpu")
    assert {cls.__module__.partition(".")[0] for cls in (type(subject), subject.trainer_class)} == {mutation.SUBJECT}
    for name in [name for name in sys.modules if name.partition(".")[0] == mutation.SUBJECT]:
        del sys.modules[name]


def test_a_sample_without_mutants_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutation, "find_spec", lambda _: True)
    with pytest.raises(SystemExit, match="2"):
        mutation.main(["--sample", "0"])
    assert "--sample: got 0, want 1 or more" in capsys.readouterr().err


def test_without_cosmic_ray_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutation, "find_spec", lambda _: None)
    assert mutation.main([]) == 2
    assert capsys.readouterr().err == "cosmic-ray is not installed: pip install cosmic-ray==8.7.0\n"
