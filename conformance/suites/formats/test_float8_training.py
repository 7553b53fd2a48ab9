"""Float8 training by delayed scaling: results of layers, and accuracy."""

import numpy as np
import pytest

from conformance.checks.api import Bound, Subject, Verdict, clause, need
from conformance.techniques import float8_training as expected
from conformance.techniques.float8_training import STILL, rule_of
from conformance.techniques.formats import WITHIN, U, values_up_to, worst_share
from conformance.techniques.post_training import bias_of
from fixtures.arrays import Array
from fixtures.data import digits_batch
from fixtures.model import Activation, Batch, Dense, Head, Heads, Model
from fixtures.models import digits_mlp
from fixtures.recipe import Adam, Float8, Recipe
from frameworks.contract import AmaxHistories, Capability, LayerTrace, Trainer

TWO = Model(
    "two-layers", (Dense(24), Activation("relu"), Heads((Head("output", 6),))), (40,), (("output", "squared_error"),)
)
DENSE = {"0.weight": ("0", None), "2.output.weight": ("2.output", "1")}
"""By weight, the path of its dense layer and the path of the layer whose output is its input."""
ROWS = 12
LARGEST = pytest.mark.parametrize("largest", [4.0, 300.0, 0.002], ids=["usual", "beyond", "tiny"])


def weights(biases: float = 0.0) -> dict[str, Array]:
    """Return weights of all magnitudes, and biases with the largest value `biases`."""
    return {
        name: values_up_to(shape, 0.3, [11, index])
        if name.endswith("weight")
        else np.asarray(biases * np.random.default_rng([12, index]).uniform(-1, 1, shape), np.float32)
        for index, (name, shape) in enumerate(TWO.parameter_shapes().items())
    }


def batch(seed: int, largest: float) -> Batch:
    """Return samples with the largest value `largest`, and targets."""
    targets = values_up_to((ROWS, 6), 2.0, [seed, 32])
    return Batch(values_up_to((ROWS, 40), largest, [seed, 31]), {"output": targets})


def run_pass(
    subject: Subject, verdict: Verdict, largest: float, start: dict[str, Array]
) -> tuple[LayerTrace, dict[str, expected.Float8Layer]]:
    """Return a traced pass after three updates, and the expected output of each layer for its inputs."""
    rule = rule_of(subject).product
    need(subject, Capability.TRACE)
    run = subject.trainer(TWO, STILL, start)
    for seed, magnitude in enumerate((2.0, 3.0, 5.0)):
        run.update((batch(10 * subject.seed + seed, magnitude),))
    known = run.view(AmaxHistories)
    verdict.equal(sorted(known), sorted(DENSE), "layers with an amax history", "other-layers")
    samples = batch(10 * subject.seed + 7, largest)
    shown = run.trace(samples)
    layers = {
        name: expected.layer(
            samples.inputs if source is None else shown.outputs[source],
            start[name],
            start[bias_of(name)],
            shown.gradients[path],
            rule,
            known[name],
        )
        for name, (path, source) in DENSE.items()
    }
    return shown, layers


@clause("formats.float8-values")
@LARGEST
def test_layers_multiply_dequantized_values(subject: Subject, verdict: Verdict, largest: float) -> None:
    shown, layers = run_pass(subject, verdict, largest, weights())
    for name, layer in layers.items():
        path, _ = DENSE[name]
        share = worst_share(shown.outputs[path], layer.outputs.values, layer.outputs.bound)
        verdict.within(share, WITHIN, f"what layer {path} gives", "value")


@clause("formats.float8-values")
def test_biases_are_not_cast(subject: Subject, verdict: Verdict) -> None:
    """Only the product is in 8 bits; biases are added after it."""
    shown, layers = run_pass(subject, verdict, 4.0, weights(biases=3.0))
    for name, layer in layers.items():
        path, _ = DENSE[name]
        share = worst_share(shown.outputs[path], layer.outputs.values, layer.outputs.bound)
        verdict.within(share, WITHIN, f"what layer {path} gives", "bias")


@clause("formats.float8-gradients")
@LARGEST
def test_gradients_multiply_dequantized_values(subject: Subject, verdict: Verdict, largest: float) -> None:
    shown, layers = run_pass(subject, verdict, largest, weights())
    for name, layer in layers.items():
        gradient = layer.weight_gradient
        share = worst_share(shown.parameters[name], gradient.values, gradient.bound)
        verdict.within(share, WITHIN, f"gradient of {name}", "gradient")
    back = layers["2.output.weight"].input_gradient
    share = worst_share(shown.gradients["1"], back.values, back.bound)
    verdict.within(share, WITHIN, "gradient that the head passes back", "passed-back")


@clause("formats.float8-gradients")
def test_bias_gradients_are_not_cast(subject: Subject, verdict: Verdict) -> None:
    shown, _ = run_pass(subject, verdict, 4.0, weights())
    for path, _ in DENSE.values():
        gradient = shown.gradients[path].astype(np.float64)
        bound = (ROWS + 2) * U * np.abs(gradient).sum(0)
        share = worst_share(shown.parameters[f"{path}.bias"], gradient.sum(0), bound)
        verdict.within(share, WITHIN, f"gradient of the bias of layer {path}", "bias-gradient")


def _answers(subject: Subject, recipe: Recipe, test: Batch) -> Array:
    """Return the classes that a network of digits predicts after training by the recipe."""
    run: Trainer = subject.trainer(digits_mlp((64, 64)), recipe)
    for start in range(0, 80 * 64, 64):
        run.update((digits_batch(64, start % 1344),))
    return run.predict(test.inputs)["output"].argmax(-1)


@clause("formats.float8-accuracy")
def test_float8_network_reaches_float32_accuracy(subject: Subject, verdict: Verdict) -> None:
    rule_of(subject)
    test = digits_batch(397, 1400)
    wide, narrow = (_answers(subject, Recipe(Adam(1e-3), quantization=config), test) for config in (None, Float8()))
    shares = [float(np.mean(answers == test.targets["output"])) for answers in (wide, narrow)]
    verdict.observe("accuracy", {"float32": shares[0], "float8": shares[1]})
    verdict.holds(shares[1] > 0.85, "what is trained so learns", shares[1], "> 0.85", "did-not-learn")
    changed = int(np.count_nonzero(wide != narrow))
    chance = 3.0 * float(np.sqrt(changed)) / len(test.inputs)
    method = "1 point, and three standard deviations of the sum of the answers that changed"
    allowed = Bound(0.01 + chance, {"method": method, "chance": chance})
    verdict.within(shares[0] - shares[1], allowed, "accuracy that eight bits lose", "accuracy-lost")
