"""Shows of every fault of this round one small run that it changes.

It prints a line a fault and exits with 1 if a fault changes nothing or has no show.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.data import exact_batch, sincos_batch
from fixtures.layers import Convolution, Dense, Dropout, Embedding, Flatten, Head, Heads, Layer
from fixtures.model import Batch, LossKind, Model
from fixtures.models import digits_mlp, exact_linear, exact_stack, scalar, sincos
from fixtures.recipe import (
    BFLOAT16,
    FLOAT16,
    SGD,
    Adam,
    Aware,
    DynamicScaling,
    Offload,
    Precision,
    Ranks,
    Recipe,
    Recompute,
    StaticScaling,
    Steps,
)
from frameworks.contract import Gradients, Trainer
from frameworks.reference import ReferenceFramework
from tests.inventions.round_2026_11_24_m import faults_m_1, faults_m_2, faults_m_3, faults_m_4

Seen = list[Any]
Show = Callable[[ReferenceFramework], Seen]

_BATCH = exact_batch()
_SCALING = DynamicScaling(2.0**10, interval=1)


def _filled(model: Model, value: float) -> dict[str, Array]:
    return {name: np.full(shape, value) for name, shape in model.parameter_shapes().items()}


def _state(run: Trainer, *parts: str) -> Seen:
    return [value for name, value in sorted(run.state().items()) if not parts or name.startswith(parts)]


def _fed(run: Trainer, given: Iterable[Gradients]) -> Seen:
    """Parameters after each of these updates."""
    seen: Seen = []
    for gradients in given:
        run.feed(gradients)
        seen += _state(run, "parameter/")
    return seen


def _model(
    name: str, layers: tuple[Layer, ...], sample: tuple[int, ...], loss: LossKind, units: int, **more: Any
) -> Model:
    return Model(name, (*layers, Heads((Head("output", units),))), sample, (("output", loss),), **more)


def _table(entries: int, width: int = 4, length: int = 4) -> Model:
    return _model("table", (Embedding(entries, width), Flatten()), (length,), "cross_entropy", 3, integer_inputs=True)


def _ids(ids: Array) -> Batch:
    return Batch(ids, {"output": np.arange(len(ids)) % 3})


# faults_m_1


def _second_group(framework: ReferenceFramework) -> Seen:
    recipe = Recipe(SGD(1.0), schedule=Steps((1,), (0.25, 1.0)), groups=2)
    return _fed(framework.trainer(scalar(), recipe), [_filled(scalar(), 1.0)] * 2)


def _zero_factor(framework: ReferenceFramework) -> Seen:
    recipe = Recipe(SGD(1.0), schedule=Steps((1,), (0.0, 1.0)))
    return _fed(framework.trainer(scalar(), recipe), [_filled(scalar(), 1.0)] * 2)


def _sweep(framework: ReferenceFramework) -> Seen:
    recipes = [Recipe(SGD(1.0), schedule=Steps((1,), (1.0, factor))) for factor in (0.5, 0.25)]
    return [_fed(framework.trainer(scalar(), recipe), [_filled(scalar(), 1.0)] * 2) for recipe in recipes]


def _missing_gradient(framework: ReferenceFramework) -> Seen:
    first, _ = names = list(scalar().parameter_shapes())
    whole = _filled(scalar(), 1.0)
    run = framework.trainer(scalar(), Recipe(SGD(0.5, momentum=0.5)))
    return _fed(run, [whole, {names[1]: whole[names[1]], first: None}])


def _partly_skipped(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(exact_linear(), Recipe(SGD(0.5), scaling=StaticScaling(4.0), optimizers=2))
    first, second = exact_linear().parameter_shapes().items()
    run.feed({first[0]: np.full(first[1], np.inf), second[0]: np.ones(second[1])})
    return [len(run.accumulator()), *_fed(run, [_filled(exact_linear(), 1.0)])]


def _long_interval(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(scalar(), Recipe(SGD(0.0), scaling=DynamicScaling(2.0**10, interval=2052)))
    for _ in range(2053):
        run.feed(_filled(scalar(), 1.0))
    return _state(run, "scaler/")


def _float64_heads(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(sincos(4), Recipe(SGD(0.1), scaling=StaticScaling(4.0)))
    run.update((sincos_batch(8),))
    return _state(run, "parameter/")


def _trace_after_growth(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(exact_stack(), Recipe(SGD(0.0), scaling=_SCALING))
    run.update((_BATCH,))
    return list(run.trace(_BATCH).gradients.values())


# faults_m_2


def _resumed_counts(framework: ReferenceFramework) -> Seen:
    first, second = scalar().parameter_shapes()
    whole = _filled(scalar(), 1.0)
    run = framework.trainer(scalar(), Recipe(Adam(0.5)))
    _fed(run, [whole, {first: whole[first]}, {first: whole[first]}])
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        run.restore(Path(folder))
    return _fed(run, [{first: whole[first], second: -whole[second]}])


def _saved_after_a_skip(framework: ReferenceFramework) -> Seen:
    run, other = (framework.trainer(scalar(), Recipe(SGD(0.5), scaling=_SCALING)) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        run.feed(_filled(scalar(), np.inf))
        run.save(Path(folder))
        other.restore(Path(folder))
    return _state(other)


def _saved_overflow(framework: ReferenceFramework) -> Seen:
    recipe = Recipe(SGD(0.5), FLOAT16, _SCALING, accumulation=2)
    run, other = (framework.trainer(exact_linear(), recipe) for _ in range(2))
    huge = Batch(_BATCH.inputs * np.float32(2.0**14), _BATCH.targets)
    run.accumulate(huge, 16)
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        other.restore(Path(folder))
    other.accumulate(_BATCH, 16)
    return [other.apply().skipped, *_state(other, "parameter/")]


def _failed_evaluation(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(exact_linear(), Recipe(SGD(0.5), average=0.5))
    for _ in range(2):
        run.update((_BATCH,))
    with suppress(ValueError):
        run.predict_averaged(np.ones((2, 3), np.float32))
    return _state(run, "parameter/")


def _two_passes(framework: ReferenceFramework) -> Seen:
    model = Model(
        "dropped-heads",
        (Dense(8), Dropout(0.5), Heads((Head("a", 2), Head("b", 2)))),
        (8,),
        (("a", "squared_error"), ("b", "squared_error")),
    )
    batch = Batch(_BATCH.inputs, dict.fromkeys("ab", _BATCH.targets["output"][:, :2]))
    run = framework.trainer(model, Recipe(SGD(0.5), recompute=Recompute(1), separate_losses=True))
    run.update((batch,))
    return _state(run, "parameter/", "random/")


def _frozen_ranges(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(exact_linear(), Recipe(SGD(0.0), scaling=_SCALING, quantization=Aware(freeze=2)))
    run.update((_BATCH,))
    run.feed(_filled(exact_linear(), np.inf))
    run.update((Batch(_BATCH.inputs * np.float32(4.0), _BATCH.targets),))
    return _state(run, "buffer/")


def _falling_moments(framework: ReferenceFramework) -> Seen:
    model = exact_linear(1, 64)
    shapes = model.parameter_shapes()
    gradients = [
        {name: np.linspace(size, 2 * size, 64).reshape(shape) for name, shape in shapes.items()} for size in (1.0, -0.5)
    ]
    run = framework.trainer(model, Recipe(Adam(beta1=0.5, state_bits=8, block=64, smallest=64)))
    _fed(run, gradients)
    return _state(run, "optimizer/")


# faults_m_3


def _large_ids(framework: ReferenceFramework) -> Seen:
    table = np.arange(66_000, dtype=np.float32).reshape(-1, 1)
    return [framework.run_op("embedding", np.array([5, 65_535, 65_540]), table).value]


def _padding(framework: ReferenceFramework) -> Seen:
    ids = np.zeros((100, 4), np.int64)
    ids[:, 0] = np.arange(100) % 8
    return list(framework.trainer(_table(8), Recipe(SGD())).gradients((_ids(ids),)).values())


def _many_classes(framework: ReferenceFramework) -> Seen:
    model = _model("wide", (), (4,), "cross_entropy", 1100)
    weights = {name: np.zeros(shape, np.float32) for name, shape in model.parameter_shapes().items()}
    weights["0.output.bias"][1050] = 100.0
    run = framework.trainer(model, Recipe(SGD()), weights)
    return [run.update((Batch(np.ones((2, 4), np.float32), {"output": np.array([1050, 3])}),)).loss]


def _oblong_images(framework: ReferenceFramework) -> Seen:
    model = _model("oblong", (Convolution(2), Flatten()), (4, 6, 1), "squared_error", 2)
    inputs = np.random.default_rng(0).standard_normal((3, 4, 6, 1)).astype(np.float32)
    run = framework.trainer(model, Recipe(SGD()))
    return list(run.gradients((Batch(inputs, {"output": np.ones((3, 2), np.float32)}),)).values())


def _format_of_a_product(framework: ReferenceFramework) -> str:
    return framework.run_op("matmul", np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)).dtype


def _prepared_scope(framework: ReferenceFramework) -> Seen:
    prepared = framework.autocast(FLOAT16)
    with framework.autocast(BFLOAT16):
        with prepared:
            inside = _format_of_a_product(framework)
        return [inside, _format_of_a_product(framework)]


def _inner_lists(framework: ReferenceFramework) -> Seen:
    with framework.autocast(FLOAT16, wide=("matmul",)), framework.autocast(BFLOAT16):
        return [_format_of_a_product(framework)]


def _shared_folder(framework: ReferenceFramework) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        recipe = Recipe(SGD(0.5), offload=Offload(("parameters",), "disk", folder))
        runs = [framework.trainer(exact_linear(), recipe) for _ in range(2)]
        runs[0].update((_BATCH,))
        seen = _state(runs[1], "parameter/")
        del runs
    return seen


def _late_rows(framework: ReferenceFramework) -> Seen:
    recipe = Recipe(SGD(0.5), offload=Offload(("parameters",), "disk"))
    run = framework.trainer(_table(1500), recipe)
    run.update((_ids(np.arange(1200, 1216).reshape(4, 4)),))
    return _state(run, "parameter/")


# faults_m_4


def _sharded_window(framework: ReferenceFramework) -> Seen:
    recipe = Recipe(SGD(0.5), Precision("O2", "bfloat16"), accumulation=2, ranks=Ranks(2, "gradients"))
    company = framework.company(exact_linear(), recipe)
    window = [_filled(exact_linear(), 1.0), _filled(exact_linear(), 2.0**-9)]
    company.feed([window, window])
    return [value for name, value in sorted(company.states()[0].items()) if name.startswith("master/")]


def _small_parameters(framework: ReferenceFramework) -> Seen:
    model = exact_linear(8, 2)
    company = framework.company(model, Recipe(SGD(0.5), clip=1.0, ranks=Ranks(4, "full")))
    return [update.gradient_norm for update in company.feed([[_filled(model, 1.0)]] * 4)]


def _fewer_ranks(framework: ReferenceFramework) -> Seen:
    recipe = Recipe(SGD(0.5), average=0.5, ranks=Ranks(2))
    run = framework.company(exact_linear(), recipe)
    for _ in range(2):
        run.feed([[_filled(exact_linear(), 1.0)]] * 2)
    other = framework.company(exact_linear(), recipe.but(ranks=Ranks(1)))
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        other.restore(Path(folder))
    return [value for name, value in sorted(other.states()[0].items()) if name.startswith("optimizer/average/")]


def _left_out(framework: ReferenceFramework) -> Seen:
    model = digits_mlp((4,) * 6)
    made = framework.post_training().quantized("weight-int8", model, model.weights(0), skip=("0.weight",))
    return [name for name, weight in made.weights().items() if weight is None]


def _late_calibration(framework: ReferenceFramework) -> Seen:
    model = exact_linear()
    batches = [np.ones((1024, 8), np.float32), np.full((4, 8), 8.0, np.float32)]
    made = framework.post_training().quantized("static-int8", model, model.weights(0), batches)
    return [each.inputs.scale for each in made.calibrated().values()]


def _transposed(framework: ReferenceFramework) -> Seen:
    values = np.arange(12, dtype=np.float32).reshape(3, 4).T
    return [framework.quantizers().quantize("int8-row", values).values]


def _late_nan(framework: ReferenceFramework) -> Seen:
    product = framework.delayed_product(np.ones((2, 2), np.float32), history=2)
    gradient = np.ones((1, 2), np.float32)
    product.train((np.full((1, 2), 3.0, np.float32), gradient), (np.full((1, 2), np.nan, np.float32), gradient))
    return [product.remembered()["input"].maxima]


SHOWS: Mapping[str, Show] = {
    "SecondGroupStartsAtBaseRate": _second_group,
    "ZeroFactorIsNone": _zero_factor,
    "ScheduleOfTheFirstRun": _sweep,
    "MomentumWithoutGradient": _missing_gradient,
    "AppliedGradientsStay": _partly_skipped,
    "GrowthCounterInFloat16": _long_interval,
    "UnscalesInFloat32": _float64_heads,
    "TraceByTheInitialScale": _trace_after_growth,
    "OneCountForAllParameters": _resumed_counts,
    "OnlyNewerStepsAreSaved": _saved_after_a_skip,
    "SavedGradientsAreFinite": _saved_overflow,
    "AverageStaysAfterAnError": _failed_evaluation,
    "StreamIsReplayedOnce": _two_passes,
    "FreezeCountsSkips": _frozen_ranges,
    "LargestMagnitudeNeverFalls": _falling_moments,
    "IdsOfSixteenBits": _large_ids,
    "RowsOfManyUses": _padding,
    "LargestOfTheFirstBlock": _many_classes,
    "KernelGradientsOfOblongImages": _oblong_images,
    "ScopeRemembersWhereItWasMade": _prepared_scope,
    "ListsAreInherited": _inner_lists,
    "RunsShareTheirFiles": _shared_folder,
    "UnchangedByTheirBeginning": _late_rows,
    "ShardedGradientsAddUpLow": _sharded_window,
    "SmallParametersCountForEveryRank": _small_parameters,
    "AverageOfAnotherSizeIsDropped": _fewer_ranks,
    "LayersLeftOutByPartOfAName": _left_out,
    "CalibrationStopsAfterRows": _late_calibration,
    "TransposedMatricesAreMisread": _transposed,
    "LaterNaNIsOverlooked": _late_nan,
}
"""What to run for each fault, by its name."""


def _bits(value: Any) -> Any:
    if isinstance(value, list):
        return [_bits(each) for each in value]
    array = np.asarray(value)
    return array.dtype.name, array.shape, array.tobytes()


def _outcome(framework: ReferenceFramework, show: Show) -> Any:
    try:
        return _bits(show(framework))
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"


def _faults() -> list[type[ReferenceFramework]]:
    modules = (faults_m_1, faults_m_2, faults_m_3, faults_m_4)
    made = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    return [value for value in made if issubclass(value, ReferenceFramework) and hasattr(value, "clause")]


def main() -> int:
    """Runs every show under the reference and under the fault; how many do not differ decides what is returned."""
    failed = 0
    for fault in _faults():
        show = SHOWS.get(fault.__name__)
        if show is None:
            failed += 1
            sys.stdout.write(f"NO SHOW  {fault.__name__}\n")
            continue
        expected, found = _outcome(ReferenceFramework(), show), _outcome(fault(), show)
        same = expected == found
        failed += same
        both = (("reference", expected), ("fault", found))
        raised = [f" ({who} {what})" for who, what in both if isinstance(what, str)]
        sys.stdout.write(f"{'SAME   ' if same else 'differs'}  {fault.__name__}{''.join(raised)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
