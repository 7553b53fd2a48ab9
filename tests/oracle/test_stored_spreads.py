"""Stored spreads: used for the code and the inputs that they were derived from, collected, and kept."""

import json
from pathlib import Path

import numpy as np
import pytest

from conformance.oracle import bounds_cache, derivation_hash, errormodel, stored_spreads
from conformance.oracle.errormodel import Envelope
from conformance.suites.autocast.test_autocast_parity import FIXTURES, GENTLE, OPTIMIZERS
from fixtures.data import exact_batch
from fixtures.models import exact_linear
from fixtures.recipe import BFLOAT16, FLOAT16, FLOAT32, SGD, Precision, Recipe
from frameworks.cache_folder import CACHE_FOLDER
from frameworks.contract import Conventions
from frameworks.reference.framework import CONVENTIONS
from tests.support.suite_runs import ROOT

RECIPE = Recipe(SGD(2.0**-4), precision=FLOAT16)
SPREADS = ("loss_spread", "gain_spread", "gradient_spread", "parameter_spread")


def make_envelope() -> Envelope:
    """An envelope of three updates."""
    return errormodel.envelope(Conventions(), exact_linear(), RECIPE, [(exact_batch(4, 8, 4),)] * 3)


def compute_evaluation_bound() -> float:
    """The bound of an evaluation after one update."""
    batch = exact_batch(4, 8, 4)
    results = errormodel.evaluation(Conventions(), exact_linear(), RECIPE, [(batch,)], batch.inputs)
    return results["predictions"][1].value


@pytest.fixture
def spreads_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of spreads in place of the suite's own one; the cache folder is empty."""
    file = tmp_path / "spreads.json"
    monkeypatch.setattr(stored_spreads.load_spreads, "__defaults__", (file,), raising=False)
    monkeypatch.setattr(bounds_cache, "load_spreads", lambda: stored_spreads.load_spreads(file))
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "first"))
    make_envelope()
    compute_evaluation_bound()
    assert stored_spreads.collect([tmp_path / "first"], file) == 2
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "second"))
    return file


@pytest.mark.usefixtures("spreads_file")
def test_envelope_of_stored_spreads_is_the_same_without_an_ensemble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errormodel, "Stochastic", None)
    stored, bound = make_envelope(), compute_evaluation_bound()
    monkeypatch.undo()
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "first"))
    assert bound == compute_evaluation_bound()
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "third"))
    monkeypatch.setattr(bounds_cache, "load_spreads", dict)
    fresh = make_envelope()
    for name in ("losses", "gradient", "parameters"):
        assert np.array_equal(getattr(stored.exact, name), getattr(fresh.exact, name))
    for name in SPREADS:
        assert np.array_equal(getattr(stored, name), getattr(fresh, name), equal_nan=True), name
    assert stored.derivation == fresh.derivation


def test_collect_drops_entries_of_other_code(spreads_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = json.loads(spreads_file.read_text())
    spreads_file.write_text(json.dumps({**before, "code": "0" * 64}))
    stored_spreads.load_spreads.cache_clear()
    assert stored_spreads.load_spreads(spreads_file) == {}
    with monkeypatch.context() as patched:
        patched.setattr(errormodel, "Stochastic", None)
        with pytest.raises(TypeError):
            make_envelope()
    make_envelope()
    folder = spreads_file.parent / "second"
    assert stored_spreads.collect([folder], spreads_file) == 1
    assert json.loads(spreads_file.read_text())["entries"].keys() < before["entries"].keys()


def test_keep_after_a_change_without_effect_keeps_entries(spreads_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former = json.loads(spreads_file.read_text())
    spreads_file.write_text(json.dumps({**former, "code": "0" * 64}))
    stored_spreads.load_spreads.cache_clear()
    folder = spreads_file.parent / "second"
    make_envelope()
    with pytest.raises(ValueError, match="got 1 entries that were derived again, want 20"):
        stored_spreads.keep([folder], spreads_file)
    monkeypatch.setattr(stored_spreads, "SAMPLE", 1)
    assert stored_spreads.keep([folder], spreads_file) == 2
    assert json.loads(spreads_file.read_text()) == former
    (name,) = {stored_spreads.entry_name(str(np.load(path)["inputs"]), path) for path in folder.glob("*.npz")}
    former["entries"][name]["loss_spread"] = "1.0 2.0 3.0"
    spreads_file.write_text(json.dumps(former))
    with pytest.raises(ValueError, match=f"1 of 1 entries differ, such as {name}: "):
        stored_spreads.keep([folder], spreads_file)


def test_main_of_a_folder_without_spreads_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "other.npz", spread=np.zeros(2), code=np.array("0" * 64))
    (tmp_path / "broken.npz").write_bytes(b"no archive")
    assert stored_spreads.main([str(tmp_path)]) == 2
    assert "no spreads of the present code" in capsys.readouterr().err
    assert stored_spreads.main([]) == 2


def test_code_hash_ignores_comments_and_messages(tmp_path: Path) -> None:
    package = tmp_path / "frameworks" / "reference"
    package.mkdir(parents=True)
    source = 'def take(x):\n    if x:\n        raise ValueError("one")\n    return 16\n'
    hashes = []
    for text in (
        source,
        f'"""What it is."""\n# a comment\n{source}',
        source.replace("one", "two"),
        source.replace("6", "7"),
    ):
        (package / "__init__.py").write_text(text, "utf-8")
        derivation_hash.code_hash.cache_clear()
        hashes.append(derivation_hash.code_hash(tmp_path))
    assert hashes[0] == hashes[1] == hashes[2] != hashes[3]


def test_modules_leave_out_attempts() -> None:
    assert (ROOT / "frameworks" / "base" / "capability_attempts.py").is_file()
    names = derivation_hash.modules()
    assert "frameworks.base.trainer" in names
    assert "frameworks.base.capability_attempts" not in names


def test_committed_spreads_have_known_arrays() -> None:
    content = json.loads(stored_spreads.FILE.read_text("utf-8"))
    assert content["entries"]
    assert all(arrays.keys() <= stored_spreads.SPREADS for arrays in content["entries"].values())


@pytest.mark.parametrize(
    ("fixture", "optimizer", "precision"),
    [("exact-linear", "adam", FLOAT32), ("exact-linear", "sgd", BFLOAT16), ("sincos", "sgd", FLOAT32)],
)
def test_envelope_of_committed_spreads_agrees_with_a_fresh_one(
    fixture: str, optimizer: str, precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spreads of two draws of eight members differ; those of the same NumPy are the same numbers."""
    make, batch, updates = FIXTURES[fixture]
    recipe = Recipe((GENTLE if fixture == "sincos" else OPTIMIZERS)[optimizer], precision)
    arguments = (CONVENTIONS, make(), recipe, [(batch(i),) for i in range(updates)])
    present = bool(stored_spreads.load_spreads())
    assert present is (json.loads(stored_spreads.FILE.read_text("utf-8"))["code"] == derivation_hash.code_hash())
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "stored"))
    with monkeypatch.context() as patched:
        if present:
            patched.setattr(errormodel, "Stochastic", None)
        ours = errormodel.envelope(*arguments)
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "fresh"))
    monkeypatch.setattr(bounds_cache, "load_spreads", dict)
    fresh = errormodel.envelope(*arguments)
    assert np.array_equal(ours.exact.parameters, fresh.exact.parameters)
    for name in SPREADS:
        stored, derived = np.array(getattr(ours, name)), np.array(getattr(fresh, name))
        is_close = (stored < 4.0 * derived) & (derived < 4.0 * stored)
        assert np.all((stored == derived) | is_close), name
