"""Low-rank adapters: what trains, what stays, the factor, quantized bases, merging, recomputation."""

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, need
from conformance.techniques import low_rank
from conformance.techniques.low_rank import (
    BASES,
    CODED,
    OF_ROUNDING,
    STEP,
    WIDE_BASES,
    drop_zero_signs,
    make,
    make_oracle,
    make_pair,
    normal,
    window,
    worst_share,
)
from fixtures.recipe import AdamW, DynamicScaling, Recompute
from frameworks.contract import BaseFormat, Capability, LowRank, Unsupported

each_wide_base = pytest.mark.parametrize("base", WIDE_BASES)
DECAY = STEP.replace(optimizer=AdamW(2.0**-4, weight_decay=0.5))
OPTIMIZERS = {"decay": DECAY, "clip": DECAY.replace(clip=2.0**-4), "average": DECAY.replace(average=0.5)}
FACTORS = {
    "alpha-above": LowRank(2, 4.0),
    "alpha-below": LowRank(4, 1.0),
    "root": LowRank(4, 4.0, root=True),
    "one-target": LowRank(2, 8.0, targets=("1",)),
}
WINDOWS = {
    "halves": STEP.replace(accumulation=2),
    "scaled": STEP.replace(scaling=DynamicScaling(2.0**10)),
    "scaled-halves": STEP.replace(accumulation=2, scaling=DynamicScaling(2.0**10)),
}


@clause("adapters.all-train")
@pytest.mark.parametrize("targets", [("0", "1"), ("1",)], ids=["both", "last"])
def test_every_adapter_has_a_gradient(subject: Subject, verdict: Verdict, targets: tuple[str, ...]) -> None:
    network, oracle = make_pair(subject, LowRank(targets=targets))
    gradients = network.gradients(*window())
    verdict.equal(sorted(gradients), sorted(oracle.trainables()), "arrays that have a gradient", "gradient-missing")
    zero = sorted(name for name, value in gradients.items() if not value.any())
    verdict.equal(zero, [], "arrays whose gradient is zero", "gradient-zero")


@clause("adapters.all-train")
@each_wide_base
def test_three_updates_change_every_adapter(subject: Subject, verdict: Verdict, base: BaseFormat) -> None:
    adapters = LowRank(base=base, targets=("0",))
    network = make(subject, adapters, base=low_rank.weights(CODED, normal))
    before = network.trainables()
    for seed in range(3):
        network.update(*window(seed, sizes=CODED))
    after = network.trainables()
    changed = sorted(name for name, value in after.items() if not np.array_equal(value, before[name]))
    biased = subject.conventions.adapter_bias == "trains"
    expected = ["0.a", "0.b", *(["0.bias"] if biased else [])]
    verdict.equal(changed, expected, "arrays that three updates change", "does-not-train")


@clause("adapters.all-train")
@pytest.mark.parametrize("base", ["bfloat16", "float16"])
def test_adapters_have_the_declared_format(subject: Subject, verdict: Verdict, base: BaseFormat) -> None:
    arrays = make(subject, LowRank(base=base)).trainables()
    formats = sorted({value.dtype.name for name, value in arrays.items() if name.endswith((".a", ".b"))})
    expected = base if subject.conventions.adapter_format == "base" else "float32"
    verdict.equal(formats, [expected], "formats of adapters", "other-format")


@clause("adapters.base-keeps-bits")
@each_wide_base
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_updates_leave_the_base(subject: Subject, verdict: Verdict, optimizer: str, base: BaseFormat) -> None:
    recipe, start = OPTIMIZERS[optimizer], low_rank.weights(CODED, normal)
    network = make(subject, LowRank(base=base, targets=("0",)), recipe, start)
    before, trained = network.base(), network.trainables()
    coded = any(value.dtype.itemsize == 1 for value in before.values())
    verdict.equal(coded, base != "float32", "the base has codes of a byte or less", "not-coded")
    for seed in range(3):
        network.update(*window(seed, sizes=CODED))
    verdict.differs(trained, network.trainables(), "the adapters after three updates")
    verdict.same_state(network.base(), before, "the base after three updates", "base-changed")


@clause("adapters.scale")
@pytest.mark.parametrize("name", list(FACTORS))
def test_outputs_and_gradients_have_the_factor(subject: Subject, verdict: Verdict, name: str) -> None:
    network, oracle = make_pair(subject, FACTORS[name])
    (inputs, gradient), *_ = window()
    verdict.equal(network.predict(inputs), oracle.predict(inputs), "outputs", "other-factor")
    measured, expected = (drop_zero_signs(own.gradients((inputs, gradient))) for own in (network, oracle))
    verdict.same_gradients(measured, expected, "gradients", "other-gradient")


@clause("adapters.scale")
def test_fresh_adapters_leave_the_outputs(subject: Subject, verdict: Verdict) -> None:
    network, oracle = make(subject), make_oracle(subject)
    (inputs, _), *_ = window()
    verdict.equal(network.predict(inputs), oracle.predict(inputs), "outputs with fresh adapters", "other-output")


@clause("adapters.scale")
@pytest.mark.parametrize("name", list(WINDOWS))
def test_window_and_loss_scale_leave_the_update(subject: Subject, verdict: Verdict, name: str) -> None:
    recipe = WINDOWS[name]
    network, oracle = make_pair(subject, recipe=recipe)
    for own in (network, oracle):
        own.update(*window(parts=recipe.accumulation))
    measured, expected = (drop_zero_signs(own.trainables()) for own in (network, oracle))
    verdict.same_state(measured, expected, "arrays after an update", "other-update")


@clause("adapters.quantized-equals-dequantized")
@pytest.mark.parametrize("base", WIDE_BASES[1:])
def test_quantized_base_acts_as_its_dequantized_copy(subject: Subject, verdict: Verdict, base: BaseFormat) -> None:
    need(subject, Capability.ADAPTER_FLOAT_INPUTS)
    adapters = LowRank(base=base, targets=("0",))
    network = make(subject, adapters, base=low_rank.weights(CODED, normal))
    network.assign(low_rank.values_of(network, normal))
    x, g = normal(3, 5, CODED[0]), normal(4, 5, CODED[1])
    wide = {name: value.astype(np.float64) for name, value in network.trainables().items()}
    a, b, bias = wide["0.a"], wide["0.b"], wide.get("0.bias", low_rank.weights(CODED, normal)["0.bias"])
    weight, factor, rank = network.weight("0").astype(np.float64), adapters.factor, adapters.rank
    verdict.differs(low_rank.weights(CODED, normal), {"0.weight": network.weight("0")}, "weight of codes", "not-coded")
    sizes = np.abs(x) @ np.abs(weight) + np.abs(bias) + factor * np.abs(x) @ np.abs(a) @ np.abs(b)
    share = worst_share(network.predict(x), x @ weight + bias + factor * (x @ a @ b), CODED[0] + rank + 6, sizes)
    verdict.within(share, OF_ROUNDING, "outputs", "output-differs")
    gradients, shares = network.gradients((x, g)), {}
    inner, hidden = g @ b.T, x @ a
    sizes_a, sizes_b = np.abs(x).T @ (np.abs(g) @ np.abs(b).T), (np.abs(x) @ np.abs(a)).T @ np.abs(g)
    shares["0.a"] = worst_share(gradients["0.a"], factor * x.T @ inner, len(x) + CODED[1] + 4, factor * sizes_a)
    shares["0.b"] = worst_share(gradients["0.b"], factor * hidden.T @ g, len(x) + CODED[0] + 4, factor * sizes_b)
    for name, own in shares.items():
        verdict.within(own, OF_ROUNDING, f"gradient of {name}", "gradient-differs")


@clause("adapters.merge")
def test_exact_adapters_are_merged_once_and_taken_out(subject: Subject, verdict: Verdict) -> None:
    need(subject, Capability.ADAPTER_MERGE)
    network, oracle = make_pair(subject)
    (inputs, _), *_ = window()
    before, outputs = network.base(), oracle.predict(inputs)
    for number in ("once", "twice"):
        network.merge()
        verdict.equal(network.predict(inputs), outputs, f"outputs, merged {number}", f"merged-{number}")
    network.unmerge()
    verdict.same_state(network.base(), before, "the base after unmerging", "base-changed")
    verdict.equal(network.predict(inputs), outputs, "outputs after unmerging", "other-output")


@clause("adapters.merge")
def test_random_adapters_are_merged_within_rounding(subject: Subject, verdict: Verdict) -> None:
    need(subject, Capability.ADAPTER_MERGE)
    network = make(subject, LowRank(targets=("0",)), base=low_rank.weights(CODED, normal))
    network.assign(low_rank.values_of(network, normal))
    a, b, weight = network.trainables()["0.a"], network.trainables()["0.b"], network.weight("0")
    network.merge()
    sizes = np.abs(weight) + 2.0 * np.abs(a) @ np.abs(b)
    exact = weight + 2.0 * a.astype(np.float64) @ b
    verdict.within(worst_share(network.weight("0"), exact, 6, sizes), OF_ROUNDING, "merged weight", "weight-differs")


@clause("adapters.merge")
@pytest.mark.parametrize("base", list(BASES))
def test_distances_of_merging_are_recorded(subject: Subject, verdict: Verdict, base: BaseFormat) -> None:
    need(subject, Capability.ADAPTER_MERGE)
    network = make(subject, LowRank(base=base, targets=("0",)), base=low_rank.weights(CODED, normal))
    network.assign(low_rank.values_of(network, lambda seed, *shape: 0.25 * normal(seed, *shape)))
    x, weight = normal(3, 5, CODED[0]), network.weight("0")
    outputs = network.predict(x).astype(np.float64)
    network.merge()
    verdict.observe("merged outputs", float(np.abs(network.predict(x).astype(np.float64) - outputs).max()))
    network.unmerge()
    verdict.observe("unmerged weight", float(np.abs(network.weight("0") - weight).max()))


@clause("adapters.recompute")
@pytest.mark.parametrize("head", ["adapter", "full"])
@pytest.mark.parametrize("base", ["float32", "int8", "nf4"])
def test_recomputed_gradients_are_the_same(subject: Subject, verdict: Verdict, head: str, base: BaseFormat) -> None:
    adapters = LowRank(base=base) if head == "adapter" else LowRank(base=base, targets=("0",), copied=("1",))
    sizes, variants = (*CODED, CODED[-1]), subject.framework.recompute_variants()
    start = low_rank.weights(sizes, normal)
    need(subject, Capability.RECOMPUTE)
    plain = make(subject, adapters, base=start)
    values = low_rank.values_of(plain, normal)
    plain.assign(values)
    batch = (normal(3, 5, sizes[0]), normal(4, 5, sizes[-1]))
    expected = plain.gradients(batch)
    for variant in variants:
        network = make(subject, adapters, STEP.replace(recompute=Recompute(1, variant=variant)), start)
        network.assign(values)
        try:
            gradients = network.gradients(batch)
        except Exception as error:
            if variant == variants[0] or isinstance(error, Unsupported):
                raise
            verdict.observe(f"{variant} raises", type(error).__name__)
        else:
            verdict.same_gradients(gradients, expected, f"gradients, {variant}")
