"""Shows of every fault of the round one small run in which it differs from the plain reference."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.data import exact_batch
from fixtures.layers import (
    Activation,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Head,
    Heads,
    Layer,
    LayerNorm,
    Residual,
    SelfAttention,
)
from fixtures.model import Batch, LossKind, Model
from fixtures.models import digits_mlp, exact_linear, exact_stack, scalar, two_heads
from fixtures.recipe import (
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
    Steps,
)
from frameworks.contract import Company, Trainer
from frameworks.reference import ReferenceFramework
from tests.inventions import FAULTS
from tests.inventions.round_2026_11_24_l import faults_l_1, faults_l_2, faults_l_3

Show = Callable[[ReferenceFramework], Mapping[str, Any]]
ROUND = (faults_l_1.__name__, faults_l_2.__name__, faults_l_3.__name__)


def _model(*layers: Layer, sample: tuple[int, ...], units: int = 2, integers: bool = False) -> Model:
    heads = Heads((Head("output", units),))
    return Model("shown", (*layers, heads), sample, (("output", "squared_error"),), integer_inputs=integers)


def _batch(*shape: int, units: int = 2) -> Batch:
    rng = np.random.default_rng(7)
    targets = rng.standard_normal((*shape[:1], units)).astype(np.float32)
    return Batch(rng.standard_normal(shape).astype(np.float32), {"output": targets})


def _fed(run: Trainer, value: float) -> dict[str, Array]:
    return {name: np.full(array.shape, value) for name, array in run.parameters().items()}


def _both_heads(size: int = 8) -> Batch:
    batch = exact_batch(size)
    return Batch(batch.inputs, {"a": batch.targets["output"][:, :2], "b": batch.targets["output"][:, 2:]})


def _one_head(name: str) -> Batch:
    batch = _both_heads()
    return Batch(batch.inputs, {name: batch.targets[name]})


def _reloaded(framework: ReferenceFramework, model: Model, recipe: Recipe, run: Trainer) -> Trainer:
    other = framework.trainer(model, recipe)
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        other.restore(Path(folder))
    return other


def warmup(framework: ReferenceFramework) -> Mapping[str, Any]:
    run = framework.trainer(exact_linear(), Recipe(SGD(0.5), groups=2, schedule=Steps((1,), (0.25, 1.0))))
    run.update((exact_batch(),))
    return run.parameters()


def padded_attention(framework: ReferenceFramework) -> Mapping[str, Any]:
    model = _model(SelfAttention(2), Flatten(), sample=(3, 6))
    return framework.trainer(model, Recipe()).predict(_batch(4, 3, 6).inputs)


def empty_concatenation(framework: ReferenceFramework) -> Mapping[str, Any]:
    result = framework.run_op("concatenate", np.ones((4, 8), np.float16), np.ones((4, 0), np.float32))
    return {"dtype": result.dtype}


def many_rows(framework: ReferenceFramework) -> Mapping[str, Any]:
    run = framework.trainer(_model(LayerNorm(), sample=(2,)), Recipe())
    return run.predict(_batch(2**16 + 8, 2).inputs)


def evaluated_norm(framework: ReferenceFramework) -> Mapping[str, Any]:
    run = framework.trainer(_model(BatchNorm(epsilon=1e-3), sample=(4,)), Recipe())
    run.update((_batch(16, 4),))
    return run.predict(_batch(16, 4).inputs)


def shortcut(framework: ReferenceFramework) -> Mapping[str, Any]:
    model = _model(Residual((Activation("relu"), Dense(4))), sample=(4,))
    return framework.trainer(model, Recipe()).predict(_batch(8, 4).inputs)


def two_momenta(framework: ReferenceFramework) -> Mapping[str, Any]:
    found = {}
    for momentum in (0.1, 0.5):
        run = framework.trainer(_model(BatchNorm(momentum), sample=(5,)), Recipe())
        run.update((_batch(16, 5),))
        found |= {f"{momentum}/{name}": value for name, value in run.buffers().items()}
    return found


def large_norm(framework: ReferenceFramework) -> Mapping[str, Any]:
    run = framework.trainer(exact_linear(300, 300), Recipe(clip=1.0))
    return {"norm": run.feed(_fed(run, 1.0)).gradient_norm}


def other_head_later(framework: ReferenceFramework) -> Mapping[str, Any]:
    run = framework.trainer(two_heads(), Recipe())
    run.update((_one_head("a"),))
    run.update((_one_head("b"),))
    return run.parameters()


def late_counts(framework: ReferenceFramework) -> Mapping[str, Any]:
    recipe = Recipe(Adam(), Precision("O2", "bfloat16"))
    run = framework.trainer(scalar(), recipe)
    for _ in range(257):
        run.feed(_fed(run, 0.5))
    return _reloaded(framework, scalar(), recipe, run).optimizer_state()


def transposed_weights(framework: ReferenceFramework) -> Mapping[str, Any]:
    model = exact_linear()
    weights = {name: np.ascontiguousarray(value.T).T for name, value in model.weights(0).items()}
    run = framework.trainer(model, Recipe(), weights)
    return _reloaded(framework, model, Recipe(), run).parameters()


def shared_folder(framework: ReferenceFramework) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        recipe = Recipe(SGD(0.5), offload=Offload(("parameters",), "disk", folder))
        first, second = (framework.trainer(exact_linear(), recipe) for _ in range(2))
        second.update((exact_batch(),))
        found = dict(first.parameters())
        del first, second
    return found


def other_ranks(framework: ReferenceFramework) -> Mapping[str, Any]:
    model = exact_stack(68, 3)
    two, four = (Recipe(SGD(0.5, 0.5), ranks=Ranks(count, "optimizer")) for count in (2, 4))
    ranks: Company = framework.company(model, two)
    gradients = {name: np.full(shape, 0.5) for name, shape in model.parameter_shapes().items()}
    ranks.feed([[gradients], [gradients]])
    more: Company = framework.company(model, four)
    with tempfile.TemporaryDirectory() as folder:
        ranks.save(Path(folder))
        more.restore(Path(folder))
    return more.states()[0]


def skipped_layer(framework: ReferenceFramework) -> Mapping[str, Any]:
    model = digits_mlp((8,) * 6)
    made = framework.post_training().quantized("weight-int8", model, model.weights(0), skip=["0.weight"])
    return {name: weight is None for name, weight in made.weights().items()}


def changed_file(framework: ReferenceFramework) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = framework.trainer(exact_linear(128, 128), Recipe(offload=Offload(("parameters",), "disk", folder)))
        for file in Path(folder).rglob("master*weight*"):
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.write_bytes(content)
        update = run.feed(_fed(run, 1.0))
        del run
    return {"skipped": update.skipped}


def save_over_save(framework: ReferenceFramework) -> Mapping[str, Any]:
    recipe = Recipe(SGD(0.5), accumulation=2)
    run, other = (framework.trainer(exact_linear(), recipe) for _ in range(2))
    one, two = exact_batch().into(2)
    with tempfile.TemporaryDirectory() as folder:
        run.accumulate(one, 8)
        run.save(Path(folder))
        run.accumulate(two, 8)
        run.apply()
        run.save(Path(folder))
        other.restore(Path(folder))
    other.update((one, two))
    return other.parameters()


def average_without_gradient(framework: ReferenceFramework) -> Mapping[str, Any]:
    run = framework.trainer(two_heads(), Recipe(average=0.5))
    for batch in (_both_heads(), _both_heads(), _one_head("a"), _one_head("a")):
        run.update((batch,))
    return run.optimizer_state()


def failed_evaluation(framework: ReferenceFramework) -> Mapping[str, Any]:
    run = framework.trainer(exact_linear(), Recipe(average=0.5))
    for _ in range(2):
        run.update((exact_batch(),))
    try:
        run.predict_averaged(np.ones((2, 3), np.float32))
    except ValueError:
        return run.parameters()
    return {}


def many_dynamic_rows(framework: ReferenceFramework) -> Mapping[str, Any]:
    model = digits_mlp((8,))
    made = framework.post_training().quantized("dynamic-int8", model, model.weights(0))
    rows = np.random.default_rng(3).standard_normal((600, 784)) * np.linspace(0.1, 10.0, 600)[:, None]
    return {"outputs": made.layer("0.weight", rows.astype(np.float32))}


def two_conversions(framework: ReferenceFramework) -> Mapping[str, Any]:
    run = framework.trainer(exact_linear(), Recipe(SGD(0.5), quantization=Aware()))
    run.update((exact_batch(),))
    run.convert()
    run.update((exact_batch(),))
    (weight,) = run.convert().weights().values()
    assert weight is not None
    return {"values": weight.values}


def long_history(framework: ReferenceFramework) -> Mapping[str, Any]:
    product = framework.delayed_product(np.ones((4, 4), np.float32), history=32)
    for step in range(20):
        product.train((np.full((1, 4), 1.0 if step else 100.0, np.float32), np.ones((1, 4), np.float32)))
    return {"scale": product.remembered()["input"].scale}


def kept_share(framework: ReferenceFramework) -> Mapping[str, Any]:
    model = _model(Dropout(0.1), sample=(4096,), units=1)
    run = framework.trainer(model, Recipe())
    return run.gradients((Batch(np.ones((1, 4096), np.float32), {"output": np.ones((1, 1), np.float32)}),))


def many_items(framework: ReferenceFramework) -> Mapping[str, Any]:
    run = framework.trainer(exact_linear(2, 1), Recipe(precision=FLOAT16))
    inputs, targets = np.ones((70_000, 2), np.float32), np.full((70_000, 1), 2.0, np.float32)
    return run.gradients((Batch(inputs, {"output": targets}),))


def late_ids(framework: ReferenceFramework) -> Mapping[str, Any]:
    model = _model(Embedding(2**16 + 4, 1), Flatten(), sample=(2,), integers=True)
    ids = np.array([[2**16 + 1, 3]], np.int64)
    return framework.trainer(model, Recipe()).gradients((Batch(ids, {"output": np.ones((1, 2), np.float32)}),))


def pointwise(framework: ReferenceFramework) -> Mapping[str, Any]:
    model = _model(Convolution(2, size=1, padding=0), Flatten(), sample=(3, 3, 2))
    return framework.trainer(model, Recipe(precision=FLOAT16)).gradients((_batch(4, 3, 3, 2),))


def low_logits(framework: ReferenceFramework) -> Mapping[str, Any]:
    return {"value": framework.run_op("softmax", np.array([[-200.0, -201.0]], np.float32)).value}


def short_windows(framework: ReferenceFramework) -> Mapping[str, Any]:
    recipe = Recipe(accumulation=2, scaling=DynamicScaling(8.0, interval=2))
    run = framework.trainer(exact_linear(), recipe)
    scales = []
    for window in ((exact_batch(),), exact_batch().into(2)):
        scales.append(run.update(window).scale_after)
    return {"scales": np.array(scales)}


def two_backward_passes(framework: ReferenceFramework) -> Mapping[str, Any]:
    heads = Heads((Head("a", 2), Head("b", 2)))
    losses: tuple[tuple[str, LossKind], ...] = (("a", "squared_error"), ("b", "squared_error"))
    model = Model("shown", (Dense(16), Dropout(0.5), heads), (8,), losses)
    run = framework.trainer(model, Recipe(separate_losses=True, recompute=Recompute(1)))
    return run.gradients((_both_heads(),))


SHOWS: dict[str, Show] = {
    "WarmupMissesTheSecondGroup": warmup,
    "AttentionScalesByPaddedWidth": padded_attention,
    "ConcatenationForgetsEmptyOperands": empty_concatenation,
    "LayerNormStopsAtManyRows": many_rows,
    "BatchNormAddsEpsilonTwice": evaluated_norm,
    "ReluOverwritesTheShortcut": shortcut,
    "MomentumOfTheFirstBatchNorm": two_momenta,
    "NormOfFirstChunks": large_norm,
    "StaticGraph": other_head_later,
    "CountsComeBackInTheWeightsFormat": late_counts,
    "SavesInMemoryOrder": transposed_weights,
    "RunsShareTheirSwapFiles": shared_folder,
    "ReshapedMomentsAreShifted": other_ranks,
    "SkipsNamesThatContainTheName": skipped_layer,
    "ChecksumOfTheFirstBlock": changed_file,
    "SavesIntoTheFormerSave": save_over_save,
    "AverageWaitsForGradients": average_without_gradient,
    "FailedEvaluationLeavesTheAverage": failed_evaluation,
    "ManyRowsShareRanges": many_dynamic_rows,
    "ConvertsOnce": two_conversions,
    "HistoryOfSixteen": long_history,
    "DropoutRateInEightBits": kept_share,
    "ItemsInFloat16": many_items,
    "IdsKeptInSixteenBits": late_ids,
    "PointwiseConvolutionsStayWide": pointwise,
    "SoftmaxMaximumStartsAtZero": low_logits,
    "ShortWindowsDoNotCount": short_windows,
    "SecondRerunDrawsAnew": two_backward_passes,
}


def observed(show: Show, framework: ReferenceFramework) -> dict[str, bytes]:
    """What a show gives, to the bit, or the kind of error that it ends with."""
    try:
        found = show(framework)
    except (ArithmeticError, OSError, RuntimeError, ValueError) as error:
        return {"raised": type(error).__name__.encode()}
    arrays = {name: np.asarray(value) for name, value in found.items()}
    return {name: f"{a.dtype} {a.shape} ".encode() + a.tobytes() for name, a in arrays.items()}


def main() -> int:
    """Prints a line a fault; returns 1 if one does not differ or has no show."""
    silent = 0
    for made in (each for each in FAULTS if each.__module__ in ROUND):
        show = SHOWS.get(made.__name__)
        if show is None:
            verdict, differs = "has no show", False
        else:
            plain, broken = observed(show, ReferenceFramework()), observed(show, made())
            places = [name for name in plain | broken if plain.get(name) != broken.get(name)]
            differs = bool(places)
            verdict = f"differs in {', '.join(places[:3])}" if differs else "does not differ"
            if "raised" in plain | broken:
                verdict += f" (reference {plain.get('raised', b'silent').decode()}, "
                verdict += f"fault {broken.get('raised', b'silent').decode()})"
        silent += not differs
        print(f"{made.__name__}: {verdict}")
    return 1 if silent else 0


if __name__ == "__main__":
    raise SystemExit(main())
