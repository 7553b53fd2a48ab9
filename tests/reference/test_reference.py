"""The reference against what it stands for: finite differences, closed forms, and its plainest self."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fixtures.arrays import Array
from fixtures.data import digits_batch, exact_batch, sincos_batch, token_batch
from fixtures.model import Batch, Model
from fixtures.models import (
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
from fixtures.recipe import BFLOAT16, FLOAT16, FLOAT32, SGD, Adam, DynamicScaling, Precision, Recipe, Recompute
from frameworks.contract import Capability, RecomputeCase
from frameworks.operations import CATALOGUE
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.rounding import Exact
from frameworks.reference.core.tape import depth, recomputed, taped
from tests.support.reference_runs import same, trained

LOW_MODELS = (Precision("O2", "float16"), Precision("O3", "bfloat16"))


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
        moved = {name: value + sign * step * direction[name] for name, value in weights.items()}
        return framework.trainer(model, recipe, moved).update((batch,)).loss

    measured = (loss(1.0) - loss(-1.0)) / (2 * step)
    assert measured == pytest.approx(expected, rel=1e-5, abs=1e-6)


class TestRecomputation:
    @pytest.mark.parametrize("precision", [FLOAT32, FLOAT16, BFLOAT16, *LOW_MODELS], ids=lambda p: p.label)
    @pytest.mark.parametrize("fixture", ["digits-mlp", "digits-convolution", "encoder"])
    def test_bits_are_those_of_the_plain_run(self, fixture: str, precision: Precision) -> None:
        model, batch = SMALL[fixture]()
        recipe = Recipe(Adam(), precision, DynamicScaling(2.0**8))
        plain = trained(model, recipe)
        others = [
            trained(model, recipe.replace(recompute=r)) for r in (Recompute(1), Recompute(3), Recompute(2, depth=2))
        ]
        expected = [plain.update((batch,)).loss for _ in range(3)]
        for other in others:
            assert [other.update((batch,)).loss for _ in range(3)] == expected
            assert same(other.state(), plain.state())
            assert set(other.segment_calls()) == {6}

    def test_bytes_are_the_segments_inputs_and_the_heads(self) -> None:
        model, batch = exact_stack(8, 4), exact_batch(16)
        head = 16 * 8 * 4 + 16 * 4 * 4
        assert trained(model, Recipe()).saved_bytes(batch) == 3 * 16 * 8 * 4 + head
        assert trained(model, Recipe(recompute=Recompute(2))).saved_bytes(batch) == 1 * 16 * 8 * 4 + head

    @pytest.mark.parametrize("case", ["positional", "tuple", "list", "dict", "keyword"])
    def test_every_container_takes_part(self, case: RecomputeCase) -> None:
        x, w = np.ones((2, 3), np.float32), np.full((3, 2), 0.25, np.float32)
        framework = ReferenceFramework()
        plain, result = framework.recompute("plain", x, w), framework.recompute(case, x, w)
        assert (plain.value, plain.x.tolist(), plain.w.tolist()) == (result.value, result.x.tolist(), result.w.tolist())

    def test_errors_leave_no_trace(self) -> None:
        x, w = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
        framework = ReferenceFramework()
        before = framework.global_state()
        with framework.autocast(FLOAT16), pytest.raises(RuntimeError, match="fails"):
            framework.recompute("raises", x, w)
        with pytest.raises(RuntimeError, match="changed"):
            framework.recompute("weights-changed", x, w)
        assert framework.global_state() == before
        assert depth() == -1

    def test_a_hidden_traced_value_is_refused(self) -> None:
        holder = type("Holder", (), {})()

        def outer(x: Array) -> list[Array]:
            holder.value = x
            return [recomputed(lambda y: (y * holder.value).sum(), np.ones(3))]

        with pytest.raises(RuntimeError, match="neither an argument"):
            taped(outer, np.ones(3))


def test_taped_gives_each_array_of_a_container_its_gradient() -> None:
    arrays = {"used": np.array([1.0, 2.0]), "twice": np.array([3.0, 4.0]), "unused": np.ones((2, 1))}
    _, (pull,) = taped(lambda x: [(x["used"] + x["twice"] * x["twice"]).sum()], arrays)
    gradients = {name: gradient.tolist() for name, gradient in pull(np.ones(())).items()}
    assert gradients == {"used": [1.0, 1.0], "twice": [6.0, 8.0], "unused": [[0.0], [0.0]]}


class TestPrecision:
    @pytest.mark.parametrize("level", ["O1", "O2", "O3"])
    @pytest.mark.parametrize("name", ["float16", "bfloat16"])
    def test_formats_of_a_level(self, level: str, name: str) -> None:
        precision = Precision(level, name)
        run = trained(digits_convolution(0.0, 2), Recipe(Adam(), precision))
        run.update((digits_batch(4, image=True),))
        formats = {n: v.dtype.name for n, v in run.parameters().items()}
        assert formats["0.weight"] == ("float32" if level == "O1" else name)
        assert formats["1.scale"] == (name if level == "O3" else "float32")
        assert run.optimizer_state()["second_moment/0.weight"].dtype.name == (name if level == "O3" else "float32")
        assert {v.dtype.name for v in run.buffers().values()} == {"float32"}
        rounded = {n: v.astype(run.parameters()[n].dtype) for n, v in run.master_parameters().items()}
        assert same(rounded, run.parameters())

    def test_exact_rounding_ignores_the_recipes_precision(self) -> None:
        batch = digits_batch(4)
        runs = [
            trained(digits_mlp((8,)), Recipe(Adam(), p, DynamicScaling(2.0**4)), rounding=Exact())
            for p in (FLOAT32, FLOAT16, Precision("O3", "bfloat16"))
        ]
        losses = [[run.update((batch,)).loss for _ in range(3)] for run in runs]
        assert losses[1] == pytest.approx(losses[0], rel=1e-12)
        assert losses[0] == losses[1] or max(losses[0]) < math.inf

    @pytest.mark.parametrize("op", CATALOGUE)
    def test_an_operation_is_its_float64_self_rounded(self, op: str) -> None:
        operands = CATALOGUE[op]()
        plain = ReferenceFramework(rounding=Exact()).run_op(op, *operands)
        result = ReferenceFramework().run_op(op, *operands)
        assert result.dtype == plain.dtype == result.value.dtype.name or plain.value.dtype == np.float64
        np.testing.assert_allclose(result.value, plain.value.astype(result.value.dtype), rtol=1e-6, atol=1e-7)
        with ReferenceFramework().autocast(BFLOAT16):
            low = ReferenceFramework().run_op(op, *operands)
        np.testing.assert_allclose(low.value.astype(np.float64), plain.value.astype(np.float64), rtol=0.05, atol=0.05)

    def test_the_gradient_of_a_cast_is_a_cast(self) -> None:
        gradients = trained(digits_mlp((8,)), Recipe(precision=FLOAT16)).gradients((digits_batch(4),))
        for name in ("0.weight", "2.output.weight", "0.bias"):
            value = gradients[name]
            assert value.dtype == np.float32
            np.testing.assert_array_equal(value.astype(np.float16).astype(np.float32), value)

    def test_probe_of_a_capability_is_none_or_false(self) -> None:
        framework = ReferenceFramework()
        for capability in Capability:
            want = None if framework.declares(capability).supported else False
            assert framework.probe(capability) is want, capability


class TestCheckpoint:
    @pytest.mark.parametrize("precision", [FLOAT32, Precision("O2", "bfloat16")])
    def test_a_run_goes_on_bit_for_bit(self, tmp_path: Path, precision: Precision) -> None:
        model, batch = SMALL["digits-convolution"]()
        recipe = Recipe(Adam(), precision, DynamicScaling(2.0**8, interval=2), accumulation=2)
        run, other = trained(model, recipe), trained(model, recipe.replace())
        run.update((batch, batch))
        run.accumulate(batch, 6)
        run.save(tmp_path)
        other.restore(tmp_path)
        assert same(other.state(), run.state())
        for going in (run, other):
            going.accumulate(batch, 6)
        assert run.apply() == other.apply()
        assert same(other.state(), run.state())

    def test_a_changed_file_is_refused_and_changes_nothing(self, tmp_path: Path) -> None:
        run = trained(scalar(), Recipe(SGD(0.5), scaling=DynamicScaling()))
        run.save(tmp_path)
        (file,) = tmp_path.iterdir()
        content = file.read_bytes()
        run.apply_gradients({"0.output.bias": np.ones(1)})
        before = run.state()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        for broken in (content[:-1], content[: len(content) // 2], b"", bytes(flipped), b"PK\x03\x04"):
            file.write_bytes(broken)
            with pytest.raises(ValueError, match="checkpoint"):
                run.restore(tmp_path)
            assert same(run.state(), before)
        file.write_bytes(content)
        with pytest.raises(ValueError, match="another"):
            trained(scalar(), Recipe(SGD(0.25))).restore(tmp_path)
        run.restore(tmp_path)
        assert run.parameters()["0.output.bias"][0] == 0.0
