"""Quantization-aware training (QAT): results and gradients of layers, ranges, and conversion."""

from pathlib import Path

import numpy as np
import pytest

from conformance.checks.api import Bound, Subject, Verdict, clause, need, spike_gradients
from conformance.techniques import formats
from conformance.techniques import qat as expected
from conformance.techniques.formats import worst_share
from conformance.techniques.post_training import OF_ITS_BOUND, bias_of, check_same_ranges, random_inputs
from conformance.techniques.qat import check_following, ranges_of, rule_of
from fixtures.arrays import Array
from fixtures.data import digits_batch
from fixtures.model import Activation, Batch, Dense, Head, Heads, Model
from fixtures.models import digits_mlp
from fixtures.recipe import SGD, Adam, DynamicScaling, Qat, Recipe, Recompute
from frameworks.contract import Calibrated, CalibratedRanges, Capability, QatRule, Trainer

QAT = Recipe(SGD(2.0**-6), quantization=Qat())
STILL = Recipe(SGD(0.0), quantization=Qat())
"""A recipe under which weights stay constant and ranges change."""
LAYERS = (Dense(24), Activation("relu"), Heads((Head("output", 6),)))
TWO = Model("two-layers", LAYERS, (40,), (("output", "squared_error"),))
NAMES = ("0.weight", "2.output.weight")
ROWS = 12
FACTORS = (1.0, 3.0, 0.25, 7.0)


def weights() -> dict[str, Array]:
    """Return biases, and weights whose columns differ in magnitude and whose largest values are positive."""
    rng = np.random.default_rng([0, 9])
    result = TWO.weights(0)
    for name, value in result.items():
        if name.endswith("weight"):
            value *= 2.0 ** -(np.arange(value.shape[1], dtype=np.float32) % 4)
            columns = np.arange(value.shape[1])
            largest = np.abs(value).argmax(0)
            value[largest, columns] = np.abs(value[largest, columns])
        else:
            result[name] = (0.3 * rng.standard_normal(value.shape)).astype(np.float32)
    return result


def batch(seed: int, factor: float = 1.0, rule: QatRule | None = None) -> Batch:
    """Return samples whose codes do not depend on rounding, and targets."""
    rng = np.random.default_rng([seed, 11])
    inputs = random_inputs(ROWS, 40, rule.linear.inputs if rule else None, None, seed) * np.float32(factor)
    return Batch(inputs, {"output": rng.standard_normal((ROWS, 6)).astype(np.float32)})


def ranges_of_run(run: Trainer) -> dict[str, Array]:
    """Return a run's reported ranges, bit for bit."""
    return ranges_of(run.view(CalibratedRanges))


def run_pass(
    subject: Subject, verdict: Verdict
) -> tuple[Batch, dict[str, expected.FakeLayer], dict[str, Array], dict[str, Array]]:
    """Make one pass through two layers; return each layer's expected output, its actual output, and gradients."""
    rule = rule_of(subject)
    samples, start = batch(1, rule=rule), weights()
    run = subject.trainer(TWO, STILL, start)
    trace = run.trace(samples)
    observed: dict[str, Calibrated] = dict(run.view(CalibratedRanges))
    output = trace.outputs["2.output"].astype(np.float64)
    back = 2.0 * (output - samples.targets["output"]) / output.shape[1] / ROWS
    inputs = {"0.weight": samples.inputs, "2.output.weight": trace.outputs["1"]}
    layers: dict[str, expected.FakeLayer] = {}
    for name, gradient in zip(NAMES[::-1], (back, None), strict=True):
        if gradient is None:
            relu = trace.outputs["1"] > 0
            gradient = trace.gradients["1"].astype(np.float64) * relu
        ranges = observed[name].inputs, observed[name].outputs
        bias = start[bias_of(name)].astype(np.float64)
        layers[name] = expected.layer(inputs[name], start[name], bias, rule, ranges, gradient)
    verdict.equal(sorted(observed), sorted(NAMES), "layers with ranges", "other-layers")
    return samples, layers, dict(trace.outputs), {**trace.gradients, **trace.parameters}


@clause("quantization.aware-values")
def test_layers_compute_with_dequantized_values(subject: Subject, verdict: Verdict) -> None:
    _, layers, outputs, _ = run_pass(subject, verdict)
    for name, layer in layers.items():
        path = name.removesuffix(".weight")
        share_of_bound = worst_share(outputs[path], layer.outputs, layer.outputs_bound)
        verdict.within(share_of_bound, Bound(1.0, OF_ITS_BOUND), f"what layer {path} gives", "values-differ")


@clause("quantization.aware-gradients")
def test_qat_gradients_pass_as_declared(subject: Subject, verdict: Verdict) -> None:
    _, layers, _, gradients = run_pass(subject, verdict)
    for name, layer in layers.items():
        share_of_bound = worst_share(gradients[name], layer.weight_gradient, layer.weight_bound)
        verdict.within(share_of_bound, Bound(1.0, OF_ITS_BOUND), f"gradient of {name}", "gradient-differs")
    head = layers["2.output.weight"]
    share_of_bound = worst_share(gradients["1"], head.input_gradient, head.input_bound)
    verdict.within(share_of_bound, Bound(1.0, OF_ITS_BOUND), "gradient that the head passes back", "gradient-differs")


@clause("quantization.aware-gradients")
def test_clipped_values_have_zero_gradient(subject: Subject, verdict: Verdict) -> None:
    """The ranges are frozen first; then the head's inputs are far outside them."""
    rule = rule_of(subject)
    start = weights()
    run = subject.trainer(TWO, STILL.replace(quantization=Qat(freeze=1)), start)
    run.update((batch(1, rule=rule),))
    known = run.view(CalibratedRanges)["2.output.weight"]
    large = batch(2, factor=8.0, rule=rule)
    trace = run.trace(large)
    back = 2.0 * (trace.outputs["2.output"].astype(np.float64) - large.targets["output"]) / 6 / ROWS
    bias = start["2.output.bias"].astype(np.float64)
    ranges = known.inputs, known.outputs
    layer = expected.layer(trace.outputs["1"], start["2.output.weight"], bias, rule, ranges, back)
    share_of_bound = worst_share(trace.gradients["1"], layer.input_gradient, layer.input_bound)
    verdict.within(share_of_bound, Bound(1.0, OF_ITS_BOUND), "gradient that the head passes back", "gradient-differs")
    share_of_bound = worst_share(trace.parameters["2.output.weight"], layer.weight_gradient, layer.weight_bound)
    verdict.within(share_of_bound, Bound(1.0, OF_ITS_BOUND), "gradient of the head's weight", "gradient-differs")
    share_of_bound = worst_share(trace.outputs["2.output"], layer.outputs, layer.outputs_bound)
    verdict.within(share_of_bound, Bound(1.0, OF_ITS_BOUND), "what the head gives", "values-differ")


@clause("quantization.ranges-follow")
def test_skipped_update_does_not_count_towards_freeze(subject: Subject, verdict: Verdict) -> None:
    rule = rule_of(subject)
    if rule.linear.inputs is None:
        verdict.abstain("inputs have no codes")
        return
    recipe = STILL.replace(quantization=Qat(2), scaling=DynamicScaling(initial=1.0, interval=1000))
    run = subject.trainer(TWO, recipe, weights())
    batch_ranges: list[tuple[float, float]] = []
    for update, factor in enumerate(FACTORS):
        micro_batch = batch(update, factor, rule)
        if update < 2:
            run.apply_gradients(spike_gradients(run, np.inf))
        run.update((micro_batch,))
        if update < 2:
            batch_ranges.append((float(micro_batch.inputs.min()), float(micro_batch.inputs.max())))
        ranges = run.view(CalibratedRanges)["0.weight"].inputs
        check_following(verdict, rule, ranges, batch_ranges, f"after update {update}, with a skip before it")


@clause("quantization.ranges-follow")
@pytest.mark.parametrize("freeze", [None, 2], ids=["moving", "frozen"])
@pytest.mark.parametrize("halves", [1, 2], ids=["whole", "halves"])
def test_qat_ranges_follow_batches(subject: Subject, verdict: Verdict, freeze: int | None, halves: int) -> None:
    rule = rule_of(subject)
    if rule.linear.inputs is None:
        verdict.abstain("inputs have no codes")
        return
    run = subject.trainer(TWO, STILL.replace(quantization=Qat(freeze), accumulation=halves), weights())
    batch_ranges: list[tuple[float, float]] = []
    for update, factor in enumerate(FACTORS):
        full_batch = batch(update, factor, rule)
        size = ROWS // halves
        window = tuple(full_batch.part(start, start + size) for start in range(0, ROWS, size))
        run.update(window)
        if freeze is None or update < freeze:
            batch_ranges += [(float(part.inputs.min()), float(part.inputs.max())) for part in window]
        check_following(
            verdict, rule, run.view(CalibratedRanges)["0.weight"].inputs, batch_ranges, f"after update {update}"
        )


@clause("quantization.observers-hold-still")
@pytest.mark.parametrize("when", ["before", "after"])
def test_prediction_does_not_change_qat_ranges(subject: Subject, verdict: Verdict, when: str) -> None:
    rule = rule_of(subject)
    run, twin = (subject.trainer(TWO, STILL, weights()) for _ in range(2))
    if when == "after":
        for trainer in (run, twin):
            trainer.update((batch(0, rule=rule),))
    before, buffers = ranges_of_run(run), run.buffers()
    run.predict(batch(1, factor=100.0).inputs)
    verdict.same_state(ranges_of_run(run), before, "ranges after a prediction", "prediction-moves-ranges")
    verdict.same_state(run.buffers(), buffers, "buffers after a prediction", "prediction-moves-ranges")
    for trainer in (run, twin):
        trainer.update((batch(2, rule=rule),))
    verdict.same_state(ranges_of_run(run), ranges_of_run(twin), "ranges an update later", "prediction-moves-ranges")


@clause("quantization.observers-hold-still")
def test_recomputation_does_not_change_qat_ranges(subject: Subject, verdict: Verdict) -> None:
    rule = rule_of(subject)
    need(subject, Capability.RECOMPUTE)
    plain, recomputed = (
        subject.trainer(TWO, QAT.replace(recompute=recompute), weights()) for recompute in (None, Recompute(2))
    )
    for run in (plain, recomputed):
        for seed, factor in enumerate(FACTORS):
            run.update((batch(seed, factor, rule),))
    for name, value in ranges_of_run(plain).items():
        measured = ranges_of_run(recomputed)[name]
        near = abs(measured[0] - value[0]) <= 1e-3 * value[0]
        verdict.holds(bool(near), f"{name} with recomputation", measured, value, "recomputation-moves-ranges")
    if not subject.conventions.compiled:
        verdict.same_state(
            subject.state(recomputed), subject.state(plain), "the run with recomputation", "recompute-differs"
        )


@clause("quantization.convert-is-faithful")
def test_converted_model_matches_trained_model(subject: Subject, verdict: Verdict) -> None:
    rule = rule_of(subject)
    need(subject, Capability.CONVERT)
    start = weights()
    run = subject.trainer(TWO, STILL, start)
    for seed in range(2):
        run.update((batch(seed, rule=rule),))
    before, known = subject.state(run), run.view(CalibratedRanges)
    converted = run.convert()
    verdict.same_state(subject.state(run), before, "the run after the conversion", "run-changed")
    verdict.equal(sorted(converted.calibrated_ranges()), sorted(known), "layers with ranges", "other-layers")
    for name, weight in converted.weights().items():
        if weight is None:
            verdict.holds(False, f"{name} is quantized", signature="other-layers")
            continue
        fake = expected.fake_quantize(start[name], rule.linear.weight, rule.gradient)
        allowed = fake.uncertain * fake.step + 4 * formats.U * (np.abs(fake.values) + fake.step)
        share_of_bound = worst_share(weight.values, fake.values, allowed)
        verdict.within(share_of_bound, Bound(1.0, OF_ITS_BOUND), f"values of {name}", "other-weights")
        check_same_ranges(verdict, name, converted.calibrated_ranges()[name], known[name])


@clause("quantization.convert-is-faithful")
@pytest.mark.parametrize("factor", [1.0, 3.0], ids=["inside", "beyond"])
def test_converted_layer_gives_same_codes(subject: Subject, verdict: Verdict, factor: float) -> None:
    """At most one in a hundred results of a layer may have another code, and it must be adjacent."""
    rule = rule_of(subject)
    need(subject, Capability.CONVERT)
    model = Model("head", (Heads((Head("output", 24),)),), (40,), (("output", "squared_error"),))
    start = {name.replace("0.", "0.output.", 1): value for name, value in weights().items() if name.startswith("0.")}
    run = subject.trainer(model, STILL, start)
    rng = np.random.default_rng(3)
    targets = {"output": rng.standard_normal((ROWS, 24)).astype(np.float32)}
    for seed in range(2):
        run.update((Batch(batch(seed, rule=rule).inputs, targets),))
    inputs = np.concatenate([batch(seed, factor, rule).inputs for seed in range(5, 25)])
    trained, converted = run.predict(inputs)["output"], run.convert().predict(inputs)["output"]
    ranges = run.view(CalibratedRanges)["0.output.weight"].outputs
    if ranges is None:
        bound = 64 * formats.U * np.abs(trained).max()
        share_of_bound = float(np.abs(converted - trained).max() / bound)
        verdict.within(share_of_bound, Bound(1.0, OF_ITS_BOUND), "results after the conversion", "conversion-differs")
        return
    steps = np.abs(converted.astype(np.float64) - trained) / ranges.scale
    one = Bound(1.001, {"method": "one code"})
    verdict.within(float(steps.max()), one, "codes between the results", "conversion-differs")
    share = Bound(0.01, {"method": "float32 and integer sums differ near half-way alone"})
    verdict.within(float(np.mean(steps > 0.5)), share, "share of results with another code", "conversion-differs")


@clause("quantization.aware-survives-saving")
@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_qat_ranges_survive_saving(subject: Subject, verdict: Verdict, tmp_path: Path, used: bool) -> None:
    rule = rule_of(subject)
    need(subject, Capability.CHECKPOINT)
    recipe = QAT.replace(quantization=Qat(freeze=3))
    run, other = (subject.trainer(TWO, recipe, weights()) for _ in range(2))
    for seed, factor in enumerate(FACTORS[:2]):
        run.update((batch(seed, factor, rule),))
    run.save(tmp_path)
    if used:
        for seed in range(5):
            other.update((batch(seed, 5.0, rule),))
        other.predict(batch(1, 9.0).inputs)
    other.restore(tmp_path)
    verdict.same_state(subject.state(other), subject.state(run), "the restored run", "load-differs")
    verdict.same_state(ranges_of_run(other), ranges_of_run(run), "its ranges", "load-differs")
    for trainer in (run, other):
        for seed, factor in enumerate(FACTORS):
            trainer.update((batch(seed, factor, rule),))
    verdict.same_state(subject.state(other), subject.state(run), "the run some updates later", "goes-on-otherwise")
    verdict.same_state(ranges_of_run(other), ranges_of_run(run), "its ranges some updates later", "goes-on-otherwise")


@clause("quantization.aware-accuracy")
def test_qat_model_keeps_accuracy(subject: Subject, verdict: Verdict) -> None:
    rule_of(subject)
    model = digits_mlp((64, 64))
    run = subject.trainer(model, Recipe(Adam(1e-3), quantization=Qat()))
    for start in range(0, 80 * 64, 64):
        run.update((digits_batch(64, start % 1344),))
    test = digits_batch(397, 1400)
    trained = run.predict(test.inputs)["output"]
    share = float(np.mean(trained.argmax(-1) == test.targets["output"]))
    verdict.observe("accuracy", {"trained": share})
    verdict.holds(share > 0.85, "what is trained so learns", share, "> 0.85", "did-not-learn")
    if subject.framework.declares(Capability.CONVERT).supported:
        converted = run.convert().predict(test.inputs)["output"].argmax(-1)
        changed = np.count_nonzero(converted != trained.argmax(-1))
        after = float(np.mean(converted == test.targets["output"]))
        chance = 3.0 * float(np.sqrt(changed)) / len(converted)
        verdict.observe("accuracy", {"trained": share, "converted": after})
        method = "1 point, and three standard deviations of the sum of the answers that changed"
        allowed = Bound(0.01 + chance, {"method": method, "chance": chance})
        verdict.within(share - after, allowed, "accuracy that the conversion loses", "accuracy-lost")
