"""The oracle: the automaton of the scale, envelopes of correct runs, bounds of quantized models, and stored spreads."""

import functools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.oracle import bounds_cache, derivation_hash, errormodel
from conformance.oracle.automaton import Scale
from conformance.oracle.errormodel import Envelope, Run, envelope
from conformance.suites.autocast.test_autocast_parity import FIXTURES, GENTLE, OPTIMIZERS
from conformance.techniques import post_training
from conformance.techniques.formats import scale_of
from conformance.techniques.post_training import cast, outlying, zero_outliers
from fixtures.arrays import Array
from fixtures.data import digits_batch, exact_batch
from fixtures.model import Dense, Head, Heads, LayerNorm, Model, Window
from fixtures.models import digits_mlp, exact_linear
from fixtures.recipe import BFLOAT16, FLOAT16, FLOAT32, SGD, DynamicScaling, Precision, Recipe
from frameworks.cache_folder import CACHE_FOLDER
from frameworks.contract import Conventions
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.rounding import Rounding, Stochastic
from frameworks.reference.framework import CONVENTIONS
from frameworks.reference.quantization.post_training import RULES
from frameworks.reference.training.trainer import ReferenceTrainer
from tests.support.suite_runs import ROOT

G, B = True, False
"""A finite update, and a non-finite one."""
PRECISIONS = [FLOAT32, FLOAT16, BFLOAT16]
each_precision = pytest.mark.parametrize("precision", PRECISIONS, ids=lambda p: p.label)
ROWS, WIDTH = 8, 96
COLUMNS = RULES["load-int8"]
VALUES = replace(COLUMNS, without="values")
OUTLYING = {"none": [], "below": [], "at": [20], "one": [20], "negative": [20], "all": list(range(WIDTH))}
each_case = pytest.mark.parametrize("case", post_training.CASES)
NORMED = Model("normed", (Dense(2, bias=False), LayerNorm(), Heads((Head("a", 2),))), (2,), (("a", "squared_error"),))


@pytest.mark.parametrize(
    ("start", "schedule", "scales", "good_steps"),
    [
        (Scale(1024.0, interval=3), [G, G, G, G], [1024.0, 1024.0, 2048.0, 2048.0], [1, 2, 0, 1]),
        (Scale(64.0, interval=3), [G, G, B, G, G, G], [64.0, 64.0, 32.0, 32.0, 32.0, 64.0], [1, 2, 0, 1, 2, 0]),
        (Scale(64.0, growth=4.0, backoff=0.25, interval=1), [B, G, G], [16.0, 64.0, 256.0], [0, 0, 0]),
        (Scale(1024.0, interval=2, good=1), [G], [2048.0], [0]),
        (Scale(4.0, minimum=1.5), [B, B], [2.0, 1.5], [0, 0]),
        (Scale(0.5, minimum=1.0), [B], [0.5], [0]),
        (Scale(2.0**125, interval=1, maximum=2.0**127), [G] * 4, [2.0**126, *[2.0**127] * 3], [0] * 4),
        (Scale(10.0, interval=2, maximum=16.0, good=1), [G], [10.0], [0]),
        (Scale(2.0**127, interval=1), [G], [math.inf], [0]),
        (Scale(2.0**-149), [B], [0.0], [0]),
        (Scale(1.0, backoff=0.1), [B], [float(np.float32(0.1))], [0]),
        (Scale(3.0, growth=1.1, interval=1), [G], [float(np.float32(3.0) * np.float32(1.1))], [0]),
    ],
)
def test_trace_of_a_schedule_has_the_states_by_hand(
    start: Scale, schedule: list[bool], scales: list[float], good_steps: list[int]
) -> None:
    before, states = replace(start), list(start.trace(schedule))
    assert [state.scale for state in states] == scales
    assert [state.good for state in states] == good_steps
    assert start == before


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5))
def test_trace_of_any_schedule_counts_growths_and_backoffs(schedule: list[bool], interval: int) -> None:
    growths, run = 0, 0
    for finite in schedule:
        run = run + 1 if finite else 0
        growths += finite and run % interval == 0
    *_, last = Scale(1.0, interval=interval), *Scale(1.0, interval=interval).trace(schedule)
    assert last.scale == 2.0 ** (growths - schedule.count(B))
    assert last.good == run % interval


class FastTrainer(ReferenceTrainer):
    """Its learning rate is one per cent too large."""

    def learning_rate(self) -> float:
        return 1.01 * super().learning_rate()


class SteepTrainer(ReferenceTrainer):
    """Its gradients are a thousandth too large."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        super().accumulate_gradient(name, 1.001 * gradient)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that the tests of this module share."""
    folder = tmp_path_factory.getbasetemp() / "envelopes"
    monkeypatch.setenv(CACHE_FOLDER, str(folder))
    return folder


Case = tuple[Model, Recipe, list[Window]]


def digits_case(precision: Precision, seed: int = 0) -> Case:
    """A small MLP on digits, four updates."""
    scaling = DynamicScaling(initial=2.0**8) if precision is FLOAT16 else None
    windows: list[Window] = [(digits_batch(16, 16 * (4 * seed + i)),) for i in range(4)]
    return digits_mlp((16,)), Recipe(SGD(0.05), precision, scaling, seed=seed), windows


def exact_case(precision: Precision) -> Case:
    """One linear layer of power-of-two weights, three updates."""
    scaling = DynamicScaling(initial=2.0**8) if precision is FLOAT16 else None
    return exact_linear(), Recipe(SGD(2.0**-4), precision, scaling), [(exact_batch(seed=i),) for i in range(3)]


def run_case(
    case: Case, framework: Callable[..., ReferenceFramework] = ReferenceFramework, rounding: Rounding | None = None
) -> Run:
    model, recipe, windows = case
    return errormodel.run(framework("cpu", rounding=rounding).trainer(model, recipe), windows)


def make_envelope(case: Case) -> Envelope:
    return envelope(Conventions(), *case)


def beyond(case: Case, measured: Run) -> list[str]:
    """The quantities of a run outside its envelope."""
    result = make_envelope(case)
    distance, bound, _ = result.worst_loss(measured.losses)
    gradient, parameters = result.gradient(measured.gradient), result.parameters(measured.parameters)
    pairs = {"loss": (distance, bound), "gradient": gradient, "parameters": parameters}
    return [name for name, (value, limit) in pairs.items() if not value <= limit.value]


@each_precision
@pytest.mark.parametrize("make", [digits_case, exact_case])
def test_envelope_includes_random_rounding(make: Callable[[Precision], Case], precision: Precision) -> None:
    """None of 40 other members of each ensemble lies outside."""
    case = make(precision)
    runs = {seed: run_case(case, rounding=Stochastic(np.random.default_rng([seed, 99]))) for seed in range(40)}
    assert {seed: result for seed, measured in runs.items() if (result := beyond(case, measured))} == {}


@pytest.mark.parametrize(
    ("trainer", "quantities"), [(FastTrainer, {"loss", "parameters"}), (SteepTrainer, {"gradient"})]
)
def test_envelope_excludes_a_small_fault(trainer: type[ReferenceTrainer], quantities: set[str]) -> None:
    for case in (digits_case(FLOAT32), exact_case(FLOAT32), exact_case(FLOAT16)):
        twin = type("Twin", (ReferenceFramework,), {"trainer_class": trainer})
        assert quantities <= set(beyond(case, run_case(case, twin)))


def test_envelope_excludes_nan() -> None:
    case = digits_case(FLOAT16)
    run = run_case(case)
    losses = run.losses.copy()
    losses[2] = math.nan
    damaged = Run(losses, math.nan * run.gradient, math.nan * run.parameters)
    assert beyond(case, damaged) == ["loss", "gradient", "parameters"]
    assert make_envelope(case).worst_loss(losses)[2] == 2


def test_envelope_widens_with_the_format_and_names_its_derivation() -> None:
    envelopes = [make_envelope(digits_case(precision)) for precision in PRECISIONS]
    for a, b in pairwise(envelopes):
        assert 0.0 < a.loss_spread[0] < b.loss_spread[0]
        assert a.gradient_spread < b.gradient_spread
        assert a.parameter_spread < b.parameter_spread
        assert (np.diff(b.loss_spread) >= 0.0).all()
    for precision, result in zip(PRECISIONS, envelopes, strict=True):
        assert result.count_judged() >= 1
        assert result.derivation["format"] == precision.format
        assert {"method", "samples", "multiplier", "seed", "origin"} <= result.derivation.keys()


def test_worst_loss_ignores_updates_that_are_not_judged() -> None:
    losses = np.array([2.0, 2.0, 2.0, 2.0])

    def with_spread(*spread: float) -> Envelope:
        return Envelope(Run(losses, losses, losses), np.array(spread), 0.0, np.zeros(1), 0.0, {}, {})

    result = with_spread(0.01, 0.1, 0.3, 0.4)
    assert result.count_judged() == 2
    assert result.worst_loss(losses + np.array([0.0, 0.1, 50.0, math.nan]))[2] == 1
    assert with_spread(1.0, 1.0, 1.0, 1.0).count_judged() == 0
    with pytest.raises(ValueError, match="first update"):
        with_spread(1.0, 1.0, 1.0, 1.0).worst_loss(losses)


def are_equal(a: Envelope, b: Envelope) -> bool:
    arrays = ((a.exact.losses, b.exact.losses), (a.exact.gradient, b.exact.gradient), (a.loss_spread, b.loss_spread))
    spreads = (a.gradient_spread, a.parameter_spread) == (b.gradient_spread, b.parameter_spread)
    return spreads and all(np.array_equal(x, y) for x, y in arrays) and a.derivation == b.derivation


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "own"))
    return tmp_path / "own"


@pytest.mark.usefixtures("empty_cache")
def test_envelope_origin_differs_with_what_it_derives_from() -> None:
    model, recipe, windows = exact_case(FLOAT16)
    changes = [
        (model, recipe.replace(seed=1), windows),
        (model, recipe.replace(optimizer=SGD(2.0**-5)), windows),
        (model, recipe, windows[:2]),
        (model, recipe, windows[::-1]),
        (replace(model, starts=()), recipe, windows),
    ]
    origins = [make_envelope(case).derivation["origin"] for case in [(model, recipe, windows), *changes]]
    assert len(set(origins)) == len(origins)


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"no archive",
        lambda content: content[: len(content) // 2],
        lambda content: content[:200] + bytes(60) + content[260:],
        lambda content: content.replace(b"gradient.npy", b"graduate.npy"),
    ],
    ids=["foreign", "cut", "zeros", "renamed"],
)
def test_envelope_is_read_from_the_cache_unless_it_is_damaged(
    empty_cache: Path, damage: Callable[[bytes], bytes]
) -> None:
    first = make_envelope(exact_case(FLOAT16))
    (file,) = empty_cache.iterdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(errormodel, "ReferenceFramework", None)
        assert are_equal(make_envelope(exact_case(FLOAT16)), first)
    file.write_bytes(damage(file.read_bytes()))
    assert are_equal(make_envelope(exact_case(FLOAT16)), first)
    assert are_equal(make_envelope(exact_case(FLOAT16)), first)
    assert list(empty_cache.iterdir()) == [file]


@each_case
@pytest.mark.parametrize("seed", range(5))
def test_cases_have_their_outlying_columns(case: str, seed: int) -> None:
    inputs = post_training.CASES[case](ROWS, WIDTH, COLUMNS, seed)
    assert inputs.shape == (ROWS, WIDTH)
    assert np.flatnonzero(outlying(inputs, COLUMNS)).tolist() == OUTLYING[case]
    if case == "below":
        assert inputs.max() == -inputs.min() == 5.99609375


@each_case
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rule", [COLUMNS, VALUES], ids=["columns", "values"])
def test_cases_have_no_value_near_a_rounding_boundary(rule, case: str, seed: int) -> None:  # type: ignore[no-untyped-def]
    inputs = post_training.CASES[case](ROWS, WIDTH, rule, seed)
    coded = cast(inputs, rule)[:, ~outlying(inputs, rule)].astype(np.float64)
    scale = scale_of(zero_outliers(inputs, rule), rule.inputs)[:, :1]
    assert np.abs(coded / scale - np.floor(coded / scale) - 0.5).min(initial=1.0) > 0.01
    assert np.abs(coded / scale).max(initial=0.0) < 127.5


def test_from_float_bound_is_half_a_code_and_a_cast() -> None:
    """An input of 1 and a weight of 1 in a column whose largest is 127: half a code each, and no cast."""
    weight = np.array([[1.0], [127.0]], np.float32)
    inputs = np.array([[1.0, 0.0]], np.float32)
    exact, bound = post_training.from_float(inputs, weight, np.zeros(1, np.float32), replace(COLUMNS, inputs=None))
    assert exact.tolist() == [[1.0]]
    assert 0.5 <= bound[0, 0] < 0.5 + 1e-5


@pytest.mark.parametrize(("row", "magnified"), [([1.0, -3.0], False), ([1000.0, 1000.002], True)])
def test_conditions_of_a_norm_of_nearly_equal_values_are_large(row: list[float], magnified: bool) -> None:
    weights = {name: np.zeros(shape, np.float32) for name, shape in NORMED.parameter_shapes().items()}
    weights |= {"0.weight": np.eye(2, dtype=np.float32), "1.scale": np.ones(2, np.float32)}
    weights |= {"2.a.weight": np.eye(2, dtype=np.float32)}
    batches = (np.array([row]),)
    by_layer = post_training.layer_inputs_and_outputs(NORMED, weights, batches)
    times = post_training.conditions(NORMED, weights, batches, by_layer)
    assert times["0.weight"] == pytest.approx(1.0, abs=0.5)
    assert (times["2.a.weight"] > 1e4) == magnified


RECIPE = Recipe(SGD(2.0**-4), precision=FLOAT16)
SPREADS = ("loss_spread", "gain_spread", "gradient_spread", "parameter_spread")


def make_exact_envelope() -> Envelope:
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
    read = bounds_cache.load_spreads.__wrapped__
    monkeypatch.setattr(bounds_cache, "load_spreads", functools.cache(lambda path=file: read(path)))
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "first"))
    make_exact_envelope()
    compute_evaluation_bound()
    assert bounds_cache.collect([tmp_path / "first"], file) == 2
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "second"))
    return file


@pytest.mark.usefixtures("spreads_file")
def test_envelope_of_stored_spreads_is_the_same_without_an_ensemble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errormodel, "Stochastic", None)
    stored, bound = make_exact_envelope(), compute_evaluation_bound()
    monkeypatch.undo()
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "first"))
    assert bound == compute_evaluation_bound()
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "third"))
    monkeypatch.setattr(bounds_cache, "load_spreads", dict)
    fresh = make_exact_envelope()
    for name in ("losses", "gradient", "parameters"):
        assert np.array_equal(getattr(stored.exact, name), getattr(fresh.exact, name))
    for name in SPREADS:
        assert np.array_equal(getattr(stored, name), getattr(fresh, name), equal_nan=True), name
    assert stored.derivation == fresh.derivation


def test_collect_drops_entries_of_other_code(spreads_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = json.loads(spreads_file.read_text())
    spreads_file.write_text(json.dumps({**before, "code": "0" * 64}))
    bounds_cache.load_spreads.cache_clear()
    assert bounds_cache.load_spreads(spreads_file) == {}
    with monkeypatch.context() as patched:
        patched.setattr(errormodel, "Stochastic", None)
        with pytest.raises(TypeError):
            make_exact_envelope()
    make_exact_envelope()
    folder = spreads_file.parent / "second"
    assert bounds_cache.collect([folder], spreads_file) == 1
    assert json.loads(spreads_file.read_text())["entries"].keys() < before["entries"].keys()


def test_keep_after_a_change_without_effect_keeps_entries(spreads_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former = json.loads(spreads_file.read_text())
    spreads_file.write_text(json.dumps({**former, "code": "0" * 64}))
    bounds_cache.load_spreads.cache_clear()
    folder = spreads_file.parent / "second"
    make_exact_envelope()
    with pytest.raises(ValueError, match="got 1 entries that were derived again, want 20"):
        bounds_cache.keep([folder], spreads_file)
    monkeypatch.setattr(bounds_cache, "SAMPLE", 1)
    assert bounds_cache.keep([folder], spreads_file) == 2
    assert json.loads(spreads_file.read_text()) == former
    (name,) = {bounds_cache.entry_name(str(np.load(path)["inputs"]), path) for path in folder.glob("*.npz")}
    former["entries"][name]["loss_spread"] = "1.0 2.0 3.0"
    spreads_file.write_text(json.dumps(former))
    with pytest.raises(ValueError, match=f"1 of 1 entries differ, such as {name}: "):
        bounds_cache.keep([folder], spreads_file)


def test_main_of_a_folder_without_spreads_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "other.npz", spread=np.zeros(2), code=np.array("0" * 64))
    (tmp_path / "broken.npz").write_bytes(b"no archive")
    assert bounds_cache.main([str(tmp_path)]) == 2
    assert "no spreads of the present code" in capsys.readouterr().err
    assert bounds_cache.main([]) == 2


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
    content = json.loads(bounds_cache.FILE.read_text("utf-8"))
    assert content["entries"]
    assert all(arrays.keys() <= bounds_cache.SPREADS for arrays in content["entries"].values())


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
    present = bool(bounds_cache.load_spreads())
    assert present is (json.loads(bounds_cache.FILE.read_text("utf-8"))["code"] == derivation_hash.code_hash())
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
