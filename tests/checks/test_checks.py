"""Checks that suites share: covering arrays, the first faulty layer, recomputation, equal bits, and checkpoints."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict
from conformance.checks.checkpoints import SavedRun, find_difference, is_clear, saved_runs, write
from conformance.checks.combinations import FACTORS, list_covered_pairs, list_factors, list_pairs, rows
from conformance.checks.evidence import Violation, same_bits
from conformance.checks.failing_layer import WITHIN, LayerBounds, layer_bounds, naming_the_layer
from conformance.checks.outcome import conclude
from conformance.oracle.bound import Bound
from conformance.suites.recompute.test_recompute import probe_arrays
from conformance.techniques import recompute
from fixtures.arrays import Array
from fixtures.data import digits_batch, exact_batch, sincos_batch, token_batch
from fixtures.model import Batch, Model
from fixtures.models import digits_convolution, digits_mlp, encoder, exact_linear, sincos
from fixtures.recipe import BFLOAT16, FLOAT16, FLOAT32, SGD, DynamicScaling, Precision, Recipe, Recompute
from frameworks.contract import Capability, Conventions, Declaration, Framework, LayerTrace, Unsupported
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer
from results.record.arrays import fingerprint
from results.record.reading import load
from tests.support.recorded import by_name
from tests.support.suite_runs import judge
from tools.faults.reference import composition as faults

FIXTURES: dict[str, Callable[[], tuple[Model, Batch]]] = {
    "exact-linear": lambda: (exact_linear(), exact_batch(8)),
    "digits-small": lambda: (digits_mlp((32,), "tanh"), digits_batch(8)),
    "digits-convolution": lambda: (digits_convolution(0.0, 4), digits_batch(4, image=True)),
    "encoder": lambda: (encoder(blocks=1), token_batch(4)),
    "sincos": lambda: (sincos(20), sincos_batch(16)),
}
RECIPE = Recipe(SGD(0.1))
SCALED = Recipe(SGD(0.1), FLOAT16, DynamicScaling(initial=2.0**8))
FAR = "distance: got 1.0, want at most 0.5"
DIFFERENCES: dict[str, Callable[[Array], Array]] = {
    "missing": np.zeros_like,
    "not a number": lambda value: value * np.float32(np.nan),
    "bfloat16": lambda value: value * np.float32(1 + 2.0**-8),
    "half in float16": lambda value: value.astype(np.float16).astype(np.float32),
    "transposed": lambda value: value[None],
    "float64": lambda value: value.astype(np.float64),
}
"""Changes of an array that exceed a rounding in the last place."""


class Plain(ReferenceFramework):
    """Declares only schedules and fed gradients, so no low precision, scaling, accumulation or recomputation."""

    def declares(self, capability: Capability) -> Declaration:
        is_plain = capability in (Capability.SCHEDULE, Capability.FEED)
        return super().declares(capability) if is_plain else Declaration(False, "plain training only")

    def recompute_variants(self) -> tuple[str, ...]:
        return ()


@pytest.mark.parametrize("framework", [ReferenceFramework(), Plain()], ids=["everything", "little"])
def test_rows_cover_every_pair_of_declared_values(framework: Framework) -> None:
    pairs = list_pairs(framework)
    assert pairs
    assert pairs == list_covered_pairs(rows(framework))
    assert rows(framework) == rows(framework)
    labels = [row.label for row in rows(framework)]
    assert len(set(labels)) == len(labels)


def test_list_factors_leaves_out_refused_values() -> None:
    factors = list_factors(Plain())
    assert list(factors["precision"]) == ["O0"]
    assert list(factors["scaling"]) == ["unscaled"]
    assert list(factors["schedule"]) == ["constant", "steps"]
    assert {name for row in rows(Plain()) for _, name in row.values} >= {*FACTORS["optimizer"], "dropout", "norm"}
    assert all(row.recipe.accumulation == 1 and row.recipe.recompute is None for row in rows(Plain()))


def subject(framework_type: Any = ReferenceFramework, seed: int = 0) -> Subject:
    return Subject(framework_type("cpu"), seed)


def derive_bounds(model: Model, recipe: Recipe, batch: Batch) -> LayerBounds:
    return layer_bounds(ReferenceFramework("cpu").conventions(), model, recipe, batch)


def record_trace(model: Model, recipe: Recipe, batch: Batch, framework_type: Any = ReferenceFramework) -> LayerTrace:
    trace: LayerTrace = framework_type("cpu").trainer(model, recipe).trace(batch)
    return trace


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("precision", [FLOAT32, FLOAT16, BFLOAT16], ids=lambda p: p.label)
@pytest.mark.parametrize("fixture", FIXTURES)
def test_first_beyond_of_the_reference_is_none(fixture: str, precision: Precision, seed: int) -> None:
    (model, batch), recipe = FIXTURES[fixture](), Recipe(SGD(0.1), precision, seed=seed)
    assert derive_bounds(model, recipe, batch).first_beyond(record_trace(model, recipe, batch)) is None


@pytest.mark.parametrize(
    ("framework_type", "fixture", "where"),
    [
        (faults.LayerNormWithAnotherEpsilon, "encoder", "2.body.0 (LayerNorm), output"),
        (faults.AttentionScaledByAnotherWidth, "encoder", "2.body.1 (SelfAttention), output"),
        (faults.FilterGradientHasItsSidesExchanged, "digits-convolution", "4 (Convolution), gradient of weight"),
    ],
)
def test_first_beyond_of_a_faulty_layer_names_it(framework_type: Any, fixture: str, where: str) -> None:
    model, batch = FIXTURES[fixture]()
    beyond = derive_bounds(model, RECIPE, batch).first_beyond(record_trace(model, RECIPE, batch, framework_type))
    assert beyond.label == where
    assert beyond.measured > beyond.bound
    assert str(beyond).startswith(f"{where}: relative distance ")


@pytest.mark.parametrize("damage", ["missing", "nan", "shape", "exchanged"])
def test_first_beyond_of_a_damaged_gradient_names_it(damage: str) -> None:
    model, batch = digits_mlp((8, 8), "tanh"), digits_batch(4)
    trace = record_trace(model, RECIPE, batch)
    parameters = dict(trace.parameters)
    value = parameters.pop("2.weight")
    replaced = {"nan": value * np.nan, "shape": value[:1], "exchanged": value.T}
    parameters |= {"2.weight": replaced[damage]} if damage in replaced else {}
    beyond = derive_bounds(model, RECIPE, batch).first_beyond(replace(trace, parameters=parameters))
    assert (beyond.tensor, beyond.label) == ("parameter/2.weight", "2 (Dense), gradient of weight")
    messages = {"missing": "missing", "shape": "got shape [1, 8], want [8, 8]"}
    assert str(beyond) == f"{beyond.label}: " + messages.get(
        damage, f"relative distance got {beyond.measured:.3g}, want at most {beyond.bound:.3g}"
    )


def test_first_beyond_of_a_gradient_that_is_too_long_names_it() -> None:
    model, batch, recipe = digits_mlp((32,), "tanh"), digits_batch(32), Recipe(SGD(0.1), BFLOAT16)
    trace, bounds = record_trace(model, recipe, batch), derive_bounds(model, recipe, batch)
    name = "parameter/0.weight"
    factor = 1.0 + (bounds.gains[name] + bounds.distances[name]) / 2
    longer = bounds.exact[name] * factor
    beyond = bounds.first_beyond(replace(trace, parameters=trace.parameters | {"0.weight": longer}))
    assert beyond.what == "relative length along the exact one"
    assert beyond.label == "0 (Dense), gradient of weight"


def test_layer_bounds_of_a_zero_gradient_are_infinite() -> None:
    model, batch = encoder(blocks=1), token_batch(4)
    bounds = derive_bounds(model, RECIPE, batch)
    assert [name for name, bound in bounds.distances.items() if bound == np.inf] == ["parameter/2.body.1.key.bias"]


def failure_message(framework_type: Any, model: Model, batch: Batch, recipe: Recipe = RECIPE) -> str:
    tested = subject(framework_type)
    with pytest.raises(Violation) as caught, naming_the_layer(tested, model, recipe, batch):
        Verdict().within(1.0, Bound(0.5, {}), "distance", "beyond")
    result = conclude(tested.framework, caught.value, ())
    assert result.signature == "beyond"
    return result.message


class RefusesTraces(ReferenceTrainer):
    def trace(self, batch: Batch) -> LayerTrace:
        raise Unsupported(Capability.TRACE, f"no trace of {len(batch)} samples")


class RefusesTracesOfSegments(ReferenceTrainer):
    def trace(self, batch: Batch) -> LayerTrace:
        if self.recipe.recompute is not None:
            raise Unsupported(Capability.TRACE, "no trace of segments")
        return super().trace(batch)


class RaisesInTraces(ReferenceTrainer):
    def trace(self, batch: Batch) -> LayerTrace:
        raise RuntimeError(f"no trace of {len(batch)} samples")


def make_framework(trainer: type[ReferenceTrainer]) -> type[ReferenceFramework]:
    return type("Other", (ReferenceFramework,), {"trainer_class": trainer})


def test_naming_the_layer_adds_the_first_wrong_layer_to_the_message() -> None:
    text = failure_message(faults.AttentionScaledByAnotherWidth, encoder(blocks=1), token_batch(4))
    assert text.startswith(FAR)
    assert "first layer further from the reference than its rounding explains: 2.body.1 (SelfAttention), out" in text
    assert failure_message(ReferenceFramework, exact_linear(), exact_batch(8)).endswith(WITHIN)
    for trainer in (RefusesTraces, RaisesInTraces):
        assert failure_message(make_framework(trainer), exact_linear(), exact_batch(8)) == FAR
    segments, model = RECIPE.replace(recompute=Recompute(1)), digits_mlp((8,), "tanh")
    assert failure_message(make_framework(RefusesTracesOfSegments), model, digits_batch(4), segments).endswith(WITHIN)


def test_run_of_parity_records_tensors_bounds_and_numbers(tmp_path: Path) -> None:
    suite, record = "conformance/suites/autocast/test_autocast_parity.py", tmp_path / "run.json"
    completed = judge("-k", "exact-linear and (test_float32_sgd_parity or momentum)", f"--record={record}", suite)
    assert completed.status == 0, completed.lines
    result = load(record)
    sgd, momentum = "test_float32_sgd_parity[exact-linear]", "test_float32_optimizer_parity[exact-linear-momentum]"
    arrays = {name: entry.arrays for name, entry in by_name(result.tensors).items()}
    assert arrays.keys() == {f"first/{sgd}", f"layers/{sgd}", f"first/{momentum}"}
    first = record_trace(exact_linear(), RECIPE, exact_batch(8)).parameters
    expected = tuple(fingerprint(f"parameter/{name}", value) for name, value in first.items())
    assert arrays[f"first/{sgd}"] == expected
    assert [array.name for array in arrays[f"layers/{sgd}"]] == [
        *("output/0.output", "gradient/0.output", "parameter/0.output.weight", "parameter/0.output.bias")
    ]
    trace = by_name(result.traces)[f"loss/{sgd}"].curves
    assert trace.keys() == {"loss", "exact", "spread", "bound"}
    assert trace["bound"] == tuple(4.0 * spread for spread in trace["spread"])
    assert all(isinstance(check.measured, float) for verdict in result.verdicts for check in verdict.checks)


class Compiled(ReferenceFramework):
    """Declares that a compiler may fuse operations."""

    def conventions(self) -> Conventions:
        return replace(super().conventions(), compiled=True)


def run_comparison(framework: ReferenceFramework, name: str, change: Callable[[Array], Array]) -> Verdict:
    """Compares one of the probe's values with a changed copy of it."""
    x, w = probe_arrays()
    result = framework.recompute("plain", x, w)
    value = np.asarray(getattr(result, name), np.float32)
    verdict = Verdict()
    recompute.same_values(Subject(framework), verdict, {name: change(value)}, {name: value}, (x, w), "differs")
    return verdict


def move_to_neighbour(value: Array) -> Array:
    """Replaces every number by the next larger one."""
    return np.nextafter(value, np.float32(np.inf))


@pytest.mark.parametrize("name", ["value", "x", "w"])
def test_same_values_of_a_compiled_framework_allows_the_last_place(name: str) -> None:
    *_, check = run_comparison(Compiled("cpu"), name, move_to_neighbour).checks
    assert check.bound is not None
    assert check.derivation["runs"] == 2
    with pytest.raises(Violation):
        run_comparison(ReferenceFramework("cpu"), name, move_to_neighbour)


@pytest.mark.parametrize("difference", DIFFERENCES)
@pytest.mark.parametrize("name", ["value", "x", "w"])
def test_same_values_of_a_compiled_framework_refuses_larger_differences(name: str, difference: str) -> None:
    with pytest.raises(Violation):
        run_comparison(Compiled("cpu"), name, DIFFERENCES[difference])


def from_bits(bits: list[int], format_name: str) -> Array:
    dtype = np.dtype(getattr(ml_dtypes, format_name, format_name))
    return np.array(bits, f"uint{8 * dtype.itemsize}").view(dtype)


@pytest.mark.parametrize(
    ("format_name", "quiet", "other"),
    [
        ("float32", 0x7FC00000, 0xFFFFFFFF),
        ("float16", 0x7E00, 0xFFFF),
        ("bfloat16", 0x7FC0, 0xFFFF),
        ("float8_e5m2", 0x7E, 0xFF),
    ],
)
def test_same_bits_of_two_nans_is_true(format_name: str, quiet: int, other: int) -> None:
    """A CPU and a GPU give NaN of different bits for the same operation."""
    assert same_bits(from_bits([quiet, 1], format_name), from_bits([other, 1], format_name))
    assert not same_bits(from_bits([quiet, 1], format_name), from_bits([other, 2], format_name))
    assert not same_bits(from_bits([quiet, 1], format_name), from_bits([1, quiet], format_name))


def test_same_bits_of_signed_zeros_and_other_integers_is_false() -> None:
    for dtype in ("float32", "float64"):
        assert not same_bits(np.array([0.0, np.nan], dtype), np.array([-0.0, np.nan], dtype))
    assert same_bits(np.arange(3), np.arange(3))
    assert not same_bits(np.arange(3), np.arange(1, 4))
    assert not same_bits(np.arange(3, dtype=np.int8), np.arange(3, dtype=np.int16))


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
