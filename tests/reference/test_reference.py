"""The reference and the fixtures against finite differences, closed forms, float64 results, and sums by hand."""

import gzip
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from conformance.scenarios.definitions import use_fp16
from fixtures import data, pretrained
from fixtures.arrays import FORMATS, Array, format_of, wider
from fixtures.data import (
    MNIST_FOLDER,
    digits,
    digits_batch,
    exact_batch,
    one_hot_batch,
    read_idx,
    sincos_batch,
    token_batch,
    wide_batch,
)
from fixtures.model import Batch, Model
from fixtures.models import (
    MODELS,
    blocks,
    digits_convolution,
    digits_mlp,
    dropout_probe,
    encoder,
    exact_linear,
    exact_stack,
    scalar,
    sincos,
    two_heads,
)
from fixtures.recipe import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    SGD,
    Adam,
    AdamW,
    DynamicScaling,
    Optimizer,
    Precision,
    Recipe,
    Recompute,
    StaticScaling,
    segment_sizes,
)
from fixtures.schedules import (
    Chained,
    Cosine,
    CosineRestarts,
    Curve,
    Exponential,
    InverseTime,
    Joined,
    Linear,
    OneCycle,
    Plateau,
    PlateauRule,
    Polynomial,
    Steps,
    Triangular,
)
from frameworks.contract import Conventions, ScalerRule
from frameworks.operations import CATALOGUE
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.calls import CARRIERS, TENSORS
from frameworks.reference.core.rounding import Exact
from frameworks.reference.training.optimizers import optimizer_of
from frameworks.reference.training.trainer import ReferenceTrainer

ROWS, LOW = 16, (FLOAT16, BFLOAT16)
FILTERS = 4
# Values of a sample after the first convolution, after the pooling and after the second convolution.
LARGE, POOLED, SECOND = 28 * 28 * FILTERS, 14 * 14 * FILTERS, 7 * 7 * 2 * FILTERS
# Bytes: one for each pooled value, those of the targets, and of mean and variance of each channel.
CONVOLUTION = digits_convolution(0.0, FILTERS), digits_batch(ROWS, image=True), ROWS * (POOLED + 40) + 24 * FILTERS
WIDTH, HEADS, LENGTH = 16, 2, 16
VALUES, PROBABILITIES = LENGTH * WIDTH, HEADS * LENGTH * LENGTH
# Bytes of the statistics of three layer norms, and of the probabilities.
ENCODER = encoder(width=WIDTH, heads=HEADS, blocks=1, length=LENGTH), token_batch(ROWS, LENGTH), ROWS * LENGTH * 40


def make_trainer(model: Model, recipe: Recipe, **choices: object) -> ReferenceTrainer:
    return ReferenceFramework(**choices).trainer(model, recipe)


def two_heads_batch() -> Batch:
    x = exact_batch(outputs=2)
    return Batch(x.inputs, {"a": x.targets["output"], "b": -x.targets["output"]})


SMALL: dict[str, Callable[[], tuple[Model, Batch]]] = {
    "exact-linear": lambda: (exact_linear(), exact_batch()),
    "exact-stack": lambda: (exact_stack(), exact_batch()),
    "scalar": lambda: (scalar(), exact_batch(4, 1, 1)),
    "dropout-probe": lambda: (dropout_probe(), exact_batch(4, 64, 1)),
    "two-heads": lambda: (two_heads(), two_heads_batch()),
    "sincos": lambda: (sincos(6), sincos_batch(5)),
    "digits-mlp": lambda: (digits_mlp((12, 8)), digits_batch(4)),
    "digits-convolution": lambda: (digits_convolution(0.25, 2), digits_batch(3, image=True)),
    "encoder": lambda: (encoder(width=8, heads=2, blocks=1, dropout=0.25), token_batch(2)),
}


@pytest.mark.parametrize(
    ("fixture", "recompute"),
    [
        pytest.param(fixture, recompute, id=f"{name}-{fixture}")
        for name, recompute in (("plain", None), ("once", Recompute(1)), ("nested", Recompute(1, depth=2)))
        for fixture in SMALL
        if recompute is None or len(SMALL[fixture]()[0].layers) > 1
    ],
)
def test_gradients_are_finite_differences(fixture: str, recompute: Recompute | None) -> None:
    model, batch = SMALL[fixture]()
    recipe = Recipe(SGD(0.0), recompute=recompute, seed=1)
    weights = {name: value.astype(np.float64) for name, value in model.weights(1).items()}
    rng = np.random.default_rng(2)
    weights = {name: value + 0.05 * rng.standard_normal(value.shape) for name, value in weights.items()}
    framework = ReferenceFramework(rounding=Exact())
    gradients = framework.trainer(model, recipe, weights).gradients((batch,))
    assert gradients.keys() == weights.keys()
    direction = {name: rng.standard_normal(value.shape) for name, value in weights.items()}
    expected = sum(float(np.vdot(gradients[name], direction[name])) for name in weights)
    step = 1e-6

    def loss(sign: float) -> float:
        shifted = {name: value + sign * step * direction[name] for name, value in weights.items()}
        return framework.trainer(model, recipe, shifted).update((batch,)).loss

    measured = (loss(1.0) - loss(-1.0)) / (2 * step)
    assert measured == pytest.approx(expected, rel=1e-5, abs=1e-6)


class TestPrecision:
    @pytest.mark.parametrize("level", ["O1", "O2", "O3"])
    @pytest.mark.parametrize("name", ["float16", "bfloat16"])
    def test_update_at_a_level_has_its_formats(self, level: str, name: str) -> None:
        precision = Precision(level, name)
        run = make_trainer(digits_convolution(0.0, 2), Recipe(Adam(), precision))
        run.update((digits_batch(4, image=True),))
        formats = {n: v.dtype.name for n, v in run.parameters().items()}
        assert formats["0.weight"] == ("float32" if level == "O1" else name)
        assert formats["1.scale"] == (name if level == "O3" else "float32")
        assert run.optimizer_state()["second_moment/0.weight"].dtype.name == (name if level == "O3" else "float32")
        assert {v.dtype.name for v in run.buffers().values()} == {"float32"}
        rounded = {n: v.astype(run.parameters()[n].dtype) for n, v in run.master_parameters().items()}
        np.testing.assert_equal(rounded, run.parameters())

    def test_update_with_exact_rounding_ignores_the_precision(self) -> None:
        batch = digits_batch(4)
        runs = [
            make_trainer(digits_mlp((8,)), Recipe(Adam(), p, DynamicScaling(2.0**4)), rounding=Exact())
            for p in (FLOAT32, FLOAT16, Precision("O3", "bfloat16"))
        ]
        losses = [[run.update((batch,)).loss for _ in range(3)] for run in runs]
        assert losses[1] == losses[2] == pytest.approx(losses[0], rel=1e-12)

    def test_operations_are_those_of_the_catalogue(self) -> None:
        assert {*CARRIERS, *TENSORS} == set(CATALOGUE)

    @pytest.mark.parametrize("op", CATALOGUE)
    def test_run_op_is_the_float64_result_rounded(self, op: str) -> None:
        operands = CATALOGUE[op]()
        plain = ReferenceFramework(rounding=Exact()).run_op(op, *operands)
        result = ReferenceFramework().run_op(op, *operands)
        assert result.dtype == plain.dtype == result.value.dtype.name or plain.value.dtype == np.float64
        np.testing.assert_allclose(result.value, plain.value.astype(result.value.dtype), rtol=1e-6, atol=1e-7)
        with ReferenceFramework().autocast(BFLOAT16):
            low = ReferenceFramework().run_op(op, *operands)
        np.testing.assert_allclose(low.value.astype(np.float64), plain.value.astype(np.float64), rtol=0.05, atol=0.05)


class TestScaler:
    @pytest.mark.parametrize("latched", [False, True])
    def test_apply_of_nan_after_unscaling_follows_the_rule(self, latched: bool) -> None:
        rule = ScalerRule(minimum=2.0**-126, maximum=2.0**127, latched=latched)
        recipe = Recipe(SGD(0.5), scaling=DynamicScaling(2.0**10))
        run = make_trainer(scalar(), recipe, conventions=Conventions(scaler=rule))
        update = run.apply_gradients({"0.output.bias": np.ones(1)}, inject={"0.output.bias": np.array([math.nan])})
        assert update.skipped == (not latched)

    def test_scaling_with_wrong_settings_is_refused(self) -> None:
        refused = DynamicScaling(0.0), DynamicScaling(2.0**200), DynamicScaling(interval=0), StaticScaling(math.inf)
        for scaling in refused:
            with pytest.raises(ValueError, match=r"scale|needed"):
                make_trainer(scalar(), Recipe(scaling=scaling))


class TestConventions:
    def run_updates(self, optimizer: Optimizer, gradients: list[float], **conventions: object) -> float:
        run = make_trainer(scalar(0.0), Recipe(optimizer), conventions=Conventions(**conventions), rounding=Exact())
        for g in gradients:
            run.apply_gradients({"0.output.bias": np.array([g])})
        return float(run.parameters()["0.output.bias"][0])

    def test_adam_epsilon_follows_the_convention(self) -> None:
        adam = Adam(0.1, epsilon=0.5)
        first, second, t = 0.1 * 2.0, 0.001 * 4.0, 1
        outside = first / (1 - 0.9**t) / (math.sqrt(second / (1 - 0.999**t)) + 0.5)
        inside = math.sqrt(1 - 0.999**t) / (1 - 0.9**t) * first / (math.sqrt(second) + 0.5)
        assert self.run_updates(adam, [2.0], adam_epsilon="outside") == pytest.approx(-0.1 * outside, rel=1e-12)
        assert self.run_updates(adam, [2.0], adam_epsilon="inside") == pytest.approx(-0.1 * inside, rel=1e-12)

    def test_adamw_decay_is_decoupled(self) -> None:
        run = make_trainer(scalar(1.0), Recipe(AdamW(0.5, weight_decay=0.25)), rounding=Exact())
        run.apply_gradients({"0.output.weight": np.zeros((1, 1))})
        assert run.parameters()["0.output.weight"][0, 0] == 1.0 - 0.5 * 0.25

    @pytest.mark.parametrize("rule", ["drop-window", "drop-micro-batch"])
    def test_apply_of_a_nonfinite_micro_batch_follows_the_rule(self, rule: str) -> None:
        recipe = Recipe(SGD(0.5), accumulation=2, scaling=DynamicScaling(2.0**10))
        conventions = Conventions(nonfinite_micro_batch=rule)
        run = make_trainer(scalar(), recipe, conventions=conventions)
        update = run.apply_gradients({"0.output.bias": np.array([math.inf])}, {"0.output.bias": np.array([2.0])})
        assert update.skipped == (rule == "drop-window")
        assert update.scale_after == 2.0**9
        assert run.parameters()["0.output.bias"][0] == (0.0 if rule == "drop-window" else -0.5)

    @pytest.mark.parametrize(
        ("rule", "applied", "micro_batches"), [("flush", True, 0), ("carry", False, 1), ("drop", False, 0)]
    )
    def test_apply_of_an_incomplete_window_follows_the_rule(self, rule: str, applied: bool, micro_batches: int) -> None:
        run = make_trainer(exact_linear(), Recipe(SGD(0.5), accumulation=2), conventions=Conventions(remainder=rule))
        run.accumulate(exact_batch(4), 8)
        assert run.apply().skipped is not applied
        assert run.window.micro_batches == micro_batches


@pytest.mark.parametrize(("precision", "size"), [(FLOAT32, 4), (FLOAT16, 2), (BFLOAT16, 2)])
@pytest.mark.parametrize("segments", [0, 1, 2, 4, 8])
def test_saved_bytes_of_blocks_are_those_by_hand(precision: Precision, size: int, segments: int) -> None:
    count, width = 8, 32
    # The inputs of all dense layers but the first, and of all GELUs; with segments, of all segments but the first.
    inner = segments - 1 if segments else (count - 1) + count
    recipe = Recipe(precision=precision, recompute=Recompute(segments) if segments else None)
    saved = ReferenceFramework().trainer(blocks(count, width), recipe).saved_bytes(wide_batch(ROWS, width))
    assert saved == (inner + 1) * ROWS * width * size + ROWS * 10 * 4


@pytest.mark.parametrize(
    ("fixture", "precision", "wide", "low"),
    [
        # Batch norm's inputs and ReLU's results, the input of the second convolution and of the head.
        (CONVOLUTION, FLOAT32, 2 * LARGE + 2 * SECOND + POOLED + 32, 0),
        # Batch norm computes in float32, which ReLU takes; matmuls take casts.
        *((CONVOLUTION, precision, 2 * LARGE + 2 * SECOND, POOLED + SECOND + 32) for precision in LOW),
        # Residuals; input, queries, keys, values and context; three activations, two of them twice as wide; the head.
        (ENCODER, FLOAT32, (3 + 5 + 5 + 1) * VALUES + PROBABILITIES, 0),
        # Layer norms take the residuals in float32, and each of three projections saves its own cast of the input.
        *((ENCODER, precision, 3 * VALUES, (7 + 5 + 1) * VALUES + PROBABILITIES) for precision in LOW),
    ],
)
def test_saved_bytes_of_a_convolution_and_an_encoder_are_those_by_hand(
    fixture: tuple[Model, Batch, int], precision: Precision, wide: int, low: int
) -> None:
    model, batch, others = fixture
    saved = ReferenceFramework().trainer(model, Recipe(precision=precision)).saved_bytes(batch)
    assert saved == ROWS * (4 * wide + 2 * low) + others


IMAGES = np.arange(5 * 28 * 28).reshape(5, 28, 28) % 256
LABELS = np.array([3, 1, 4, 1, 5])
HALF = Steps((), (0.5,))


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    return MODELS[request.param]()


def significant_bits(array: Array) -> int:
    """The most bits that a value's significand needs, from its first one to its last."""
    numerators = [float(value).as_integer_ratio()[0] for value in np.abs(array).ravel()]
    return max((n >> ((n & -n).bit_length() - 1)).bit_length() if n else 0 for n in numerators)


def test_weights_depend_on_the_seed_alone(model: Model) -> None:
    first, again, other = model.weights(3), model.weights(3), model.weights(4)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    starts = {name for name, _ in model.starts}
    random = [name for name in first if name.endswith("weight") and name not in starts]
    assert all(not np.array_equal(first[name], other[name]) for name in random)
    assert all(np.array_equal(first[name], other[name]) for name in starts)


def test_weights_and_buffers_are_as_the_model_says(model: Model) -> None:
    assert MODELS[model.name]() == model
    weights, buffers = model.weights(0), model.buffers()
    assert list(weights) == list(model.parameter_shapes())
    for name, value in weights.items():
        assert (value.shape, value.dtype.name) == (model.parameter_shapes()[name], model.parameter_format(name))
        assert np.isfinite(value).all()
        assert np.array_equal(value, value.astype(np.float32))
        assert (value.dtype.name == "float64") == (model.name == "sincos" and name.startswith(("4.sin", "4.cos")))
    assert {name: value.shape for name, value in buffers.items()} == model.buffer_shapes()
    assert all((value == name.endswith("variance")).all() for name, value in buffers.items())


@pytest.mark.parametrize("make", [exact_linear, exact_stack])
def test_exact_models_and_batches_have_few_bits(make: Callable[[], Model]) -> None:
    assert max(significant_bits(value) for value in make().weights(0).values()) <= 1
    batch = exact_batch()
    assert significant_bits(batch.inputs) == 1
    assert significant_bits(batch.targets["output"]) <= 4


def make_batch() -> Batch:
    return Batch(np.arange(12.0, dtype=np.float32).reshape(6, 2), {"output": np.arange(6.0).reshape(6, 1)})


def test_split_keeps_every_sample_in_order() -> None:
    parts = make_batch().split(1, 3, 2)
    assert [len(part) for part in parts] == [1, 3, 2]
    assert [part.items for part in parts] == [1, 3, 2]
    assert np.array_equal(np.concatenate([part.inputs for part in parts]), make_batch().inputs)
    assert np.array_equal(np.concatenate([part.targets["output"] for part in parts]), make_batch().targets["output"])


def test_split_and_into_of_sizes_that_do_not_add_up_are_refused() -> None:
    assert [len(part) for part in make_batch().into(3)] == [2, 2, 2]
    for sizes in ((1, 2), (4, 4), ()):
        with pytest.raises(ValueError, match="do not add up to 6"):
            make_batch().split(*sizes)
    with pytest.raises(ValueError, match="do not add up to 6"):
        make_batch().into(4)


def test_items_of_a_batch_count_samples_or_tokens_of_the_mask() -> None:
    tokens = token_batch(5, 8)
    parts = tokens.split(2, 3)
    assert [part.items for part in parts] == [int(tokens.mask[:2].sum()), int(tokens.mask[2:].sum())]
    assert sum(part.items for part in parts) == tokens.items < 40
    assert token_batch(3, 8, ragged=False).items == 24
    assert Batch(np.zeros((3, 8), np.int64), {"output": np.zeros((3, 8), np.int64)}).items == 24
    assert Batch(np.zeros((3, 4), np.float32), {"output": np.zeros((3, 2), np.float32)}).items == 3
    assert Batch(np.zeros((3, 4), np.float32), {"output": np.zeros(3, np.int64)}).items == 3


def test_segment_sizes_are_as_equal_as_can_be() -> None:
    assert [segment_sizes(*case) for case in ((7, 3), (4, 4), (5, 1))] == [(3, 2, 2), (1, 1, 1, 1), (5,)]
    for segments in (0, 8, -1):
        with pytest.raises(ValueError, match=f"7 layers into {segments} segments"):
            segment_sizes(7, segments)


@pytest.mark.parametrize("name", FORMATS)
def test_format_of_a_name_is_that_of_its_dtype(name: str) -> None:
    target = format_of(name)
    one, smallest = (np.asarray(value, target.dtype) for value in (1.0, target.smallest_subnormal))
    assert float(smallest) == target.smallest_subnormal > 0.0
    assert float(np.asarray(target.smallest_subnormal / 2.0, target.dtype)) == 0.0
    assert float(np.asarray(target.largest, target.dtype)) == target.largest
    assert float((one + np.asarray(2.0 * target.unit_roundoff, target.dtype)).astype(target.dtype)) > 1.0
    assert float(np.asarray(1.0 + target.unit_roundoff, target.dtype)) == 1.0


def test_wider_of_two_formats_holds_both() -> None:
    assert wider("float16", "float32") == wider("float32", "float16") == "float32"
    assert wider("float16", "bfloat16") == "float32"
    assert wider("float16", "float16") == "float16"
    with pytest.raises(ValueError, match="unknown floating-point format 'half'"):
        format_of("half")


def test_digits_are_scaled_and_shuffled() -> None:
    images, labels = digits()
    assert (images.shape[1:], images.dtype.name, labels.dtype.name) == ((28, 28), "float32", "int64")
    assert len(images) == len(labels) > 1000
    assert (images.min(), images.max()) == (0.0, 1.0)
    assert set(labels) == set(range(10))
    assert not np.array_equal(labels[:10], np.arange(10))
    digits.cache_clear()
    assert all(np.array_equal(a, b) for a, b in zip(digits(), (images, labels), strict=True))


def test_token_batch_has_ids_that_float16_does_not_hold() -> None:
    result = token_batch(64)
    assert np.array_equal(one_hot_batch(4, 6).inputs, np.eye(4, 6))
    assert result.inputs.dtype == np.int64
    assert (result.inputs.astype(np.float16).astype(np.int64) != result.inputs).mean() > 0.2
    assert 2048 < result.inputs.max() < 4096
    assert np.array_equal(result.targets["output"][:, 1:], result.inputs[:, :-1] % 4)
    assert result.mask.sum(axis=1).min() >= 1.0


def idx(values: Array) -> bytes:
    """The content of a file in the format of MNIST."""
    header = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return header + values.astype(np.uint8).tobytes()


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the MNIST files."""
    monkeypatch.setenv(MNIST_FOLDER, str(tmp_path))
    digits.cache_clear()
    yield tmp_path
    digits.cache_clear()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty", b""),
        ("short-header", idx(IMAGES)[:10]),
        ("short", idx(IMAGES)[:-1]),
        ("long", idx(LABELS) + b"\0"),
        ("png", b"\x89PNG\r\n\x1a\n" + bytes(64)),
        ("plain.gz", idx(LABELS)),
        ("short.gz", gzip.compress(idx(IMAGES))[:-20]),
        ("block.gz", gzip.compress(idx(IMAGES))[:10] + b"\xff" * 40),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_read_idx_of_a_damaged_file_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=name):
        read_idx(path)


def test_digits_with_a_folder_of_mnist_are_its_images(mnist: Path) -> None:
    (mnist / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(IMAGES)))
    (mnist / "train-labels.idx1-ubyte").write_bytes(idx(LABELS))
    images, labels = digits()
    assert (images.shape, images.dtype.name) == ((5, 28, 28), "float32")
    assert sorted(labels) == sorted(LABELS)
    index = int(np.flatnonzero(labels == 3)[0])
    assert np.array_equal(images[index], (IMAGES[0] / np.float32(255.0)).astype(np.float32))


@pytest.mark.parametrize(
    ("images", "labels"),
    [(None, None), (IMAGES, LABELS[:3]), (LABELS, LABELS), (IMAGES, IMAGES), (IMAGES[:, :20], LABELS)],
    ids=["no-files", "fewer-labels", "labels-as-images", "images-as-labels", "other-size"],
)
def test_digits_of_wrong_mnist_files_are_refused(mnist: Path, images: Array | None, labels: Array | None) -> None:
    for name, values in (("train-images-idx3-ubyte", images), ("train-labels-idx1-ubyte", labels)):
        if values is not None:
            (mnist / name).write_bytes(idx(values))
    with pytest.raises(ValueError, match=str(mnist)):
        digits()


def test_pair_batch_is_balanced_and_of_one_length() -> None:
    pairs = data.pairs(400)
    assert 150 < sum(pair.same for pair in pairs) < 250
    batch = data.pair_batch(400)
    assert batch.inputs.shape == (400, data.LENGTH)
    assert batch.items == 400
    assert batch.targets["output"][:, 0].tolist() == [int(pair.same) for pair in pairs]
    index = {token: number for number, token in enumerate(data.vocabulary())}
    assert (batch.inputs[:, data.FIRST_LENGTH - 1] == index["[SEP]"]).all()
    for pair in pairs:
        agent, thing = pair.first.split()[1], pair.first.split()[4]
        assert (agent in pair.second.split()) == (thing in pair.second.split()) == pair.same
    with pytest.raises(ValueError, match="does not make 15 tokens"):
        data.pair_batch(2, lambda *pair: range(len(pair)))


def test_starts_of_stored_weights_transposes_and_joins_them() -> None:
    width, rng = 4, np.random.default_rng(0)
    model = use_fp16(real=False).setting().model
    shapes = {"embeddings.word_embeddings": (9, width), "embeddings.position_embeddings": (20, width)}
    shapes |= {"embeddings.token_type_embeddings": (2, width), "embeddings.LayerNorm": (width,)}
    block = "encoder.layer.0."
    for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
        shapes[block + name] = (width, width)
    shapes |= {f"{block}intermediate.dense": (6, width), f"{block}output.dense": (width, 6)}
    shapes |= {f"{block}attention.output.LayerNorm": (width,), f"{block}output.LayerNorm": (width,)}
    stored = {f"{name}.weight": rng.standard_normal(shape) for name, shape in shapes.items()}
    stored |= {f"{name}.bias": rng.standard_normal(shape[0]) for name, shape in shapes.items()}
    result = pretrained.starts(stored, blocks=1)
    names = {name for name in model.parameter_shapes() if int(name.split(".")[0]) < 7}
    assert result.keys() == names
    assert result["5.body.0.weight"].shape == (width, 6)
    np.testing.assert_array_equal(result["3.body.0.key.weight"], stored[f"{block}attention.self.key.weight"].T)
    types = stored["embeddings.token_type_embeddings.weight"]
    positions = stored["embeddings.position_embeddings.weight"]
    np.testing.assert_array_equal(result["1.weight"][data.FIRST_LENGTH], positions[data.FIRST_LENGTH] + types[1])
    np.testing.assert_array_equal(result["1.weight"][0], positions[0] + types[0])


@pytest.mark.parametrize(
    ("curve", "factors"),
    [
        (Steps((2, 5), (1.0, 0.5, 0.25)), [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]),
        (HALF, [0.5] * 101),
        (Exponential(0.5), [1, 0.5, 0.25, 0.125]),
        (Exponential(0.25, every=2), [1, 0.5, 0.25, 0.125]),
        (Exponential(0.5, every=2, staircase=True), [1, 1, 0.5, 0.5]),
        (InverseTime(0.5), [1, 2 / 3, 0.5, 0.4]),
        (Linear(0.25, 1.0, 3), [0.25, 0.5, 0.75, 1, 1]),
        (Polynomial(2, 2.0), [1, 0.25, 0, 0]),
        (Polynomial(2, 1.0, 0.5), [1, 0.75, 0.5, 0.5]),
        (Cosine(2), [1, 0.5, 0]),
        (Cosine(2, 0.5), [1, 0.75, 0.5]),
        (CosineRestarts(2), [1, 0.5, 1, 0.5, 1]),
        (CosineRestarts(1, 2), [1, 1, 0.5, 1]),
        (Triangular(3.0, 2), [1, 2, 3, 2, 1, 2]),
        (Triangular(3.0, 1, shrink=True), [1, 3, 1, 2, 1, 1.5]),
        (Chained((Exponential(0.5), Linear(0.5, 1.0, 2))), [0.5, 0.375, 0.25, 0.125]),
        (OneCycle(3.0, 2, 4, 0.5), [1, 2, 3, 1.75, 0.5]),
        (Joined((HALF, Exponential(0.5)), (2,)), [0.5, 0.5, 1, 0.5]),
        (Joined((HALF, Exponential(0.5)), (0,)), [1, 0.5, 0.25]),
        (Joined((Joined((HALF, Linear(0.5, 1.0, 1)), (1,)), HALF), (3,)), [0.5, 0.5, 1, 0.5]),
    ],
    ids=str,
)
def test_factor_of_a_curve_is_that_by_hand(curve: Curve, factors: list[float]) -> None:
    assert [curve.factor(applied) for applied in range(len(factors))] == pytest.approx(factors, abs=1e-12)


def test_optimizer_of_a_cycle_has_its_first_beta() -> None:
    assert str(Exponential(0.5, every=3)) == "Exponential(ratio=0.5, every=3, staircase=False)"
    recipe = Recipe(Adam(), schedule=OneCycle(3.0, 1, 3, 0.5, momenta=(0.75, 0.25)))
    assert [vars(optimizer_of(recipe, 0, applied))["beta1"] for applied in range(4)] == [0.75, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("boundaries", [(), (3, 1), (1, 2, 3)], ids=str)
def test_joined_with_wrong_boundaries_is_refused(boundaries: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="boundaries between 3 parts"):
        Joined((HALF, HALF, HALF), boundaries)


@pytest.mark.parametrize(
    ("plateau", "options", "metrics", "rates"),
    [
        (Plateau(patience=1), {}, [4, 4, 3, 3], [1, 0.5, 0.5, 0.25]),
        (Plateau(), {}, [math.nan, 4, 3, 3, 3], [1, 1, 1, 1, 0.5]),
        (Plateau(patience=1, cooldown=1), {}, [4, 4, 3, 3.5], [1, 0.5, 0.5, 0.25]),
        (Plateau(patience=1, cooldown=1), {"waits": True}, [4, 4, 3, 3.5], [1, 0.5, 0.5, 0.5]),
        (Plateau(patience=1, minimum=0.75), {}, [4, 4, 4], [1, 0.75, 0.75]),
        (Plateau(patience=1, minimum=2.0), {}, [4, 4], [1, 1]),
        (Plateau(patience=1, threshold=0.5, relative=True, mode="max"), {}, [4, 6, 7], [1, 0.5, 0.5]),
        (Plateau(patience=1, threshold=0.5, relative=True), {}, [-4, -6, -7], [1, 0.5, 0.5]),
        (Plateau(patience=1, threshold=0.5, relative=True), {"signed": True}, [-4, -3, -1], [1, 1, 0.5]),
    ],
    ids=str,
)
def test_plateau_rule_of_metrics_lowers_the_rate(
    plateau: Plateau, options: dict[str, bool], metrics: list[float], rates: list[float]
) -> None:
    assert list(map(PlateauRule(plateau, **options).take, metrics)) == rates
