"""Master weights: small updates accumulate in them."""

from pathlib import Path

import numpy as np
import pytest

from conformance.checks.api import Bound, Subject, Verdict, clause, full, need
from fixtures.arrays import FORMATS
from fixtures.data import digits_batch
from fixtures.models import digits_convolution, exact_linear, scalar
from fixtures.recipe import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    MASTERED,
    PURE_LOW,
    SGD,
    Adam,
    AdamW,
    FormatName,
    Precision,
    Recipe,
)
from frameworks.contract import Capability

WITH_MASTERS = (FLOAT16, BFLOAT16, *MASTERED)
LEVELS = (FLOAT32, *WITH_MASTERS, *PURE_LOW)
LEVEL = pytest.mark.parametrize("precision", WITH_MASTERS, ids=lambda p: p.label)


@clause("master.small-update-survives")
@LEVEL
def test_thousand_small_updates_accumulate(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    trainer = subject.trainer(scalar(1.0), Recipe(SGD(2.0**-13), precision))
    start = trainer.master_parameters()["0.output.weight"].astype(np.float64).item()
    gradient = full(trainer, 1.0)
    for _ in range(1000):
        trainer.apply_gradients(gradient)
    end = trainer.master_parameters()["0.output.weight"].astype(np.float64).item()
    verdict.equal(start - end, 1000 * 2.0**-13, "distance moved by 1,000 updates of 2^-13 from 1", "updates-lost")


@clause("master.loaded-weights-move")
@pytest.mark.parametrize("saved", ["float32", "bfloat16", "float16"])
def test_small_updates_of_loaded_checkpoint_survive(subject: Subject, verdict: Verdict, saved: FormatName) -> None:
    need(subject, Capability.LOADED_CHECKPOINT)
    run = subject.framework.loaded_run(saved, 8, 2.0**-10)
    verdict.observe(f"format of weights loaded from {saved}", run.loaded)
    what = "weights of 1 that eight updates of 2^-10 moved, without a warning about their format"
    verdict.holds(run.warned or run.moved == run.count, what, run.moved, run.count, "updates-lost")


@clause("master.counts-every-update")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("precision", "updates"),
    [(FLOAT32, 300), (BFLOAT16, 300), *((p, 300 if p.format == "bfloat16" else 2100) for p in MASTERED)],
    ids=lambda value: value.label if isinstance(value, Precision) else str(value),
)
def test_bias_correction_counts_every_update(
    subject: Subject, verdict: Verdict, precision: Precision, updates: int
) -> None:
    optimizer = Adam(2.0**-10, beta2=0.9999)
    trainer = subject.trainer(scalar(1.0), Recipe(optimizer, precision))
    gradient = full(trainer, 1.0)
    for _ in range(updates - 1):
        trainer.apply_gradients(gradient)
    before = trainer.master_parameters()["0.output.weight"].astype(np.float64).item()
    trainer.apply_gradients(gradient)
    moved = before - trainer.master_parameters()["0.output.weight"].astype(np.float64).item()
    error = abs(moved / optimizer.learning_rate - 1.0)
    verdict.within(error, equal_steps(optimizer, updates), f"update {updates}, against the rate", "updates-uncounted")


def equal_steps(optimizer: Adam, updates: int) -> Bound:
    """Return the bound of an Adam update's relative distance from the rate, by the gradient 1 in float32."""
    unit = 2.0**-24
    moments = 1.5 * unit * updates + 3.0 * unit / (1.0 - optimizer.beta1)
    correction = unit / (1.0 - optimizer.beta2) + updates * unit / (1.0 - optimizer.beta2**updates)
    return Bound(
        moments + correction + unit / optimizer.learning_rate,
        {"method": "float32 roundings of the moments, of beta and its powers, and of the weight", "updates": updates},
    )


@clause("master.pure-low-stagnates")
@pytest.mark.parametrize("precision", PURE_LOW, ids=lambda p: p.format)
def test_run_without_master_weights_stagnates(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    trainer = subject.trainer(scalar(1.0), Recipe(SGD(2.0**-13), precision))
    start = trainer.parameters()["0.output.weight"].astype(np.float64).item()
    gradient = full(trainer, 1.0)
    for _ in range(1000):
        trainer.apply_gradients(gradient)
    moved = start - trainer.parameters()["0.output.weight"].astype(np.float64).item()
    verdict.observe(f"{precision.format}-moved", moved)
    verdict.holds(moved < 1000 * 2.0**-13, "pure low precision moves less than it should: the control", moved)


@clause("master.model-is-cast-of-master")
@LEVEL
def test_model_weights_equal_rounded_masters(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    trainer = subject.trainer(exact_linear(), Recipe(Adam(2.0**-7), precision))
    start = trainer.master_parameters()
    for step in range(5):
        trainer.apply_gradients(full(trainer, 2.0**-step))
        masters, model = trainer.master_parameters(), trainer.parameters()
        rounded = {name: masters[name].astype(model[name].dtype) for name in model}
        verdict.same_state(
            model, rounded, f"model weights, compared with rounded masters after update {step}", "out-of-step"
        )
    verdict.differs(start, masters, "masters over five updates")


@clause("master.model-is-cast-of-master")
@LEVEL
def test_load_keeps_model_and_masters_consistent(
    subject: Subject, verdict: Verdict, precision: Precision, tmp_path: Path
) -> None:
    trainer = subject.trainer(exact_linear(), Recipe(Adam(2.0**-7), precision))
    trainer.apply_gradients(full(trainer, 1.0))
    trainer.save(tmp_path)
    trainer.apply_gradients(full(trainer, 1.0))
    trainer.restore(tmp_path)
    masters, model = trainer.master_parameters(), trainer.parameters()
    rounded = {name: masters[name].astype(model[name].dtype) for name in model}
    verdict.same_state(model, rounded, "model weights, compared with rounded masters after a load", "out-of-step")


@clause("master.masters-survive-load")
@LEVEL
def test_masters_survive_load_bitwise(subject: Subject, verdict: Verdict, precision: Precision, tmp_path: Path) -> None:
    recipe = Recipe(SGD(2.0**-13), precision)
    first, second = subject.trainer(scalar(1.0), recipe), subject.trainer(scalar(1.0), recipe)
    gradient = full(first, 1.0)
    for _ in range(3):
        first.apply_gradients(gradient)
    first.save(tmp_path)
    second.restore(tmp_path)
    verdict.same_state(subject.state(second), subject.state(first), "restored state", "masters-lost")
    second.apply_gradients(gradient)
    moved = 1.0 - second.master_parameters()["0.output.weight"].astype(np.float64).item()
    verdict.equal(moved, 4 * 2.0**-13, "distance moved by three updates of 2^-13, a load and another", "masters-lost")


@clause("master.adam-epsilon-survives")
@LEVEL
@pytest.mark.parametrize("value", [0.0, 2.0**-24, 1.0], ids=["zero", "tiny", "one"])
def test_tiny_gradient_gives_finite_update(
    subject: Subject, verdict: Verdict, value: float, precision: Precision
) -> None:
    trainer = subject.trainer(scalar(1.0), Recipe(Adam(1e-3), precision))
    start = trainer.master_parameters()
    trainer.apply_gradients(full(trainer, value))
    end = trainer.master_parameters()
    verdict.finite(end, "masters after one Adam update", "epsilon-lost")
    moved = max(float(np.abs(end[n].astype(np.float64) - start[n].astype(np.float64)).max()) for n in end)
    bound = 1e-3 * (1 + 2.0**-9) + 2.0**-24
    verdict.holds(
        moved <= bound, "one Adam update moves a weight by at most its rate", moved, f"<= {bound}", "epsilon-lost"
    )


@clause("master.adam-epsilon-survives")
@pytest.mark.parametrize("precision", PURE_LOW, ids=lambda p: p.format)
def test_adam_epsilon_in_pure_low_precision(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    trainer = subject.trainer(scalar(1.0), Recipe(Adam(1e-3, epsilon=None), precision))
    trainer.apply_gradients(full(trainer, 0.0))
    verdict.finite(trainer.parameters(), "parameters after a zero gradient", "epsilon-lost")


@clause("master.adam-epsilon-survives")
@pytest.mark.parametrize("precision", PURE_LOW, ids=lambda p: p.format)
def test_gradients_of_every_size_in_pure_low_precision(
    subject: Subject, verdict: Verdict, precision: Precision
) -> None:
    trainer = subject.trainer(exact_linear(), Recipe(Adam(1e-3, epsilon=None), precision))
    gradients = full(trainer, 1.0)
    gradients["0.output.weight"][0, :3] = 0.0, 2.0**-13, 1.0
    trainer.apply_gradients(gradients)
    verdict.finite(trainer.parameters(), "parameters after gradients of 0, 2^-13 and 1", "epsilon-lost")


@clause("master.decay-survives")
@LEVEL
def test_weight_decay_applies_to_masters(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    rate, decay = 2.0**-3, 2.0**-10
    trainer = subject.trainer(scalar(1.0), Recipe(AdamW(rate, weight_decay=decay), precision))
    for _ in range(64):
        trainer.apply_gradients(full(trainer, 0.0))
    end = trainer.master_parameters()["0.output.weight"].astype(np.float64).item()
    expected = (1.0 - rate * decay) ** 64
    verdict.holds(abs(end - expected) <= 64 * 2.0**-24, "weight after 64 decays of 2^-13", end, expected, "decay-lost")


@clause("master.moments-keep-precision")
@LEVEL
def test_moments_keep_float32(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    trainer = subject.trainer(exact_linear(), Recipe(Adam(2.0**-7), precision))
    formats = []
    for step in range(3):
        trainer.apply_gradients(full(trainer, 1.0 + step))
        state = trainer.optimizer_state()
        formats.append({name: value.dtype.name for name, value in state.items() if "/" in name})
    verdict.holds(bool(formats[0]), "Adam has moments", formats[0], "moments")
    verdict.equal(formats[1:], [formats[0]] * 2, "formats after each update", "format-changed")
    verdict.equal(sorted(set(formats[0].values())), ["float32"], "format of every moment", "moments-low")


@clause("master.moments-keep-precision")
@LEVEL
def test_moments_have_float32_values(subject: Subject, verdict: Verdict, precision: Precision, tmp_path: Path) -> None:
    trainer = subject.trainer(scalar(1.0), Recipe(Adam(2.0**-7, beta1=0.5, beta2=0.75), precision))
    for value in (1.0 + 2.0**-7, 2.0**-12):
        trainer.apply_gradients(full(trainer, value))
    trainer.save(tmp_path)
    expected = {2.0**-2 + 2.0**-9 + 2.0**-13, 3 * 2.0**-4 * (1.0 + 2.0**-7) ** 2 + 2.0**-26}
    for when in ("after two updates", "after a load"):
        state = {n: v for n, v in trainer.optimizer_state().items() if n.endswith("/0.output.weight")}
        values = {v.astype(np.float64).item() for v in state.values()}
        verdict.holds(values >= expected, f"both moments {when}", sorted(values), sorted(expected), "moments-low")
        trainer.apply_gradients(full(trainer, 1.0))
        trainer.restore(tmp_path)


@clause("master.levels")
@pytest.mark.parametrize("precision", LEVELS, ids=lambda p: p.label)
def test_observe_precision_levels(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    trainer = subject.trainer(digits_convolution(0.0, 2), Recipe(Adam(), precision))
    batch = digits_batch(4, image=True)
    gradients = trainer.gradients((batch,))
    trainer.update((batch,))
    parts = {
        "parameters": trainer.parameters(),
        "masters": trainer.master_parameters(),
        "gradients": gradients,
        "moments": {n: v for n, v in trainer.optimizer_state().items() if "/" in n},
        "buffers": trainer.buffers(),
        "output": trainer.predict(batch.inputs),
    }
    table = {part: sorted({value.dtype.name for value in arrays.values()}) for part, arrays in parts.items()}
    verdict.observe(precision.label, table)
    known = set(FORMATS)
    verdict.holds(all(known.issuperset(names) for names in table.values()), "every format is a known one", table)
