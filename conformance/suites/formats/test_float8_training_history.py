"""The amax history of float8 training by delayed scaling: windows, skips, saves and optimizers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, need
from conformance.techniques import float8_training as expected
from conformance.techniques.float8_training import weights as exact_weights
from conformance.techniques.formats import SCALE, WITHIN, U, stored_scales, worst_share
from fixtures.recipe import SGD, AdamW, DynamicScaling, Float8, Recompute, StaticScaling
from frameworks.contract import AmaxHistories, Capability, Operand

PARTS = pytest.mark.parametrize("parts", [(0,), (0, -3), (-3, 0)], ids=["whole", "largest-first", "largest-last"])
SCALINGS = {"default-factors": DynamicScaling(2.0**6), "own-factors": DynamicScaling(2.0**6, 2.0, 0.25, 1000)}
FOREIGN = {
    "another-history": (expected.EIGHTHS.replace(quantization=Float8(expected.HISTORY + 2)), expected.EIGHTHS),
    "from-float32": (expected.EIGHTHS.replace(quantization=None), expected.EIGHTHS),
    "into-float32": (expected.EIGHTHS, expected.EIGHTHS.replace(quantization=None)),
}
OPTIMIZERS = {
    "momentum": expected.EIGHTHS.replace(optimizer=SGD(2.0**-6, 0.9)),
    "decay": expected.EIGHTHS.replace(optimizer=AdamW(2.0**-6, weight_decay=0.5)),
    "clip": expected.EIGHTHS.replace(clip=2.0**-10),
    "average": expected.EIGHTHS.replace(average=0.5),
    "groups": expected.EIGHTHS.replace(groups=2),
    "accumulation": expected.EIGHTHS.replace(accumulation=2, clip=2.0**-10),
}


@clause("formats.float8-memory-follows")
@PARTS
def test_window_records_one_amax_per_tensor(subject: Subject, verdict: Verdict, parts: tuple[int, ...]) -> None:
    expected.rule_of(subject)
    followed = expected.TrackedRun(subject, verdict, expected.STILL.replace(accumulation=len(parts)))
    for of_inputs, of_gradient in expected.WINDOWS:
        followed.update(*((of_inputs + part, of_gradient + part) for part in parts))


@clause("formats.float8-memory-follows")
def test_amax_history_is_constant_within_window(subject: Subject, verdict: Verdict) -> None:
    expected.rule_of(subject)
    followed = expected.TrackedRun(subject, verdict, expected.STILL.replace(accumulation=2))
    followed.update((0, 0), (-1, -1))
    first, second = followed.window((4, 4), (1, 1))
    followed.run.accumulate(first, expected.ITEMS)
    followed.check("inside a window")
    followed.run.accumulate(second, expected.ITEMS)
    followed.run.apply()
    followed.take()
    followed.check("after the window")


@clause("formats.float8-memory-holds-still")
@pytest.mark.parametrize("look", ["prediction", "gradients", "trace"])
def test_inspection_does_not_change_amax_history(subject: Subject, verdict: Verdict, look: str) -> None:
    expected.rule_of(subject)
    need(subject, *([Capability.TRACE] if look == "trace" else []))
    followed = expected.TrackedRun(subject, verdict, expected.STILL)
    for powers in expected.WINDOWS[:2]:
        followed.update(powers)
    before = subject.state(followed.run)
    window = expected.TrackedRun(subject, verdict, expected.STILL).window((6, 5))
    match look:
        case "prediction":
            followed.run.predict(window[0].inputs)
            followed.run.predict(np.full_like(window[0].inputs, np.inf))
        case "gradients":
            followed.run.gradients(window)
        case _:
            followed.run.trace(window[0])
    verdict.same_state(subject.state(followed.run), before, f"the run after its {look}", "moved")
    for powers in expected.WINDOWS[2:]:
        followed.update(powers)


@clause("formats.float8-memory-holds-still")
@PARTS
def test_recomputation_does_not_change_amax_history(subject: Subject, verdict: Verdict, parts: tuple[int, ...]) -> None:
    expected.rule_of(subject)
    followed = expected.TrackedRun(
        subject, verdict, expected.STILL.replace(recompute=Recompute(1), accumulation=len(parts))
    )
    for of_inputs, of_gradient in expected.WINDOWS:
        followed.update(*((of_inputs + part, of_gradient + part) for part in parts))


@clause("formats.float8-skips")
@pytest.mark.parametrize("factors", list(SCALINGS))
@pytest.mark.parametrize("target", [np.inf, np.nan], ids=["infinite", "nan"])
def test_skipped_window_updates_amax_history_as_declared(
    subject: Subject, verdict: Verdict, target: float, factors: str
) -> None:
    expected.rule_of(subject)
    followed = expected.TrackedRun(subject, verdict, expected.STILL.replace(scaling=SCALINGS[factors]))
    for powers in expected.WINDOWS[:2]:
        followed.update(powers)
    update = followed.update((5, 2), target=target)
    verdict.equal(update.skipped, True, "the update whose gradients are not finite is skipped", "not-skipped")
    for powers in expected.WINDOWS[2:]:
        update = followed.update(powers)
        verdict.equal(update.skipped, False, "a later update is skipped", "skipped")


@clause("formats.float8-skips")
def test_skip_under_static_scale_updates_amax_history_as_declared(subject: Subject, verdict: Verdict) -> None:
    expected.rule_of(subject)
    if not subject.conventions.static_skips:
        verdict.abstain("an overflow skips no update under a static scale")
        return
    followed = expected.TrackedRun(subject, verdict, expected.STILL.replace(scaling=StaticScaling(2.0**6)))
    for powers in expected.WINDOWS[:2]:
        followed.update(powers)
    update = followed.update((5, 2), target=np.inf)
    verdict.equal(update.skipped, True, "the update whose gradients are not finite is skipped", "not-skipped")
    for powers in expected.WINDOWS[2:]:
        followed.update(powers)


@clause("formats.float8-skips")
def test_infinite_amax_does_not_enter_scale(subject: Subject, verdict: Verdict) -> None:
    """Run without a scaler, so that the update is applied; infinity stays in the history until it leaves it."""
    expected.rule_of(subject)
    followed = expected.TrackedRun(subject, verdict, expected.STILL)
    for powers in expected.WINDOWS[:2]:
        followed.update(powers)
    followed.update((1, 1), input_value=np.inf)
    for powers in expected.WINDOWS:
        followed.update(powers)
        scales = {name: value for name, value in expected.memory(followed.run).items() if name.endswith("scale")}
        verdict.finite({name: 1.0 / value for name, value in scales.items()}, "codes for a value", "not-finite")


@clause("formats.float8-loss-scale")
@pytest.mark.parametrize("parts", [(0,), (0, -3)], ids=["whole", "halves"])
def test_loss_scale_affects_only_gradient_amax(subject: Subject, verdict: Verdict, parts: tuple[int, ...]) -> None:
    expected.rule_of(subject)
    recipe = expected.STILL.replace(accumulation=len(parts))
    scaled, plain = (
        expected.TrackedRun(subject, verdict, recipe.replace(scaling=scaling))
        for scaling in (StaticScaling(2.0**5), None)
    )
    for of_inputs, of_gradient in expected.WINDOWS:
        powers = [(of_inputs + part, of_gradient + part) for part in parts]
        window = plain.window(*powers)
        verdict.equal(
            scaled.window(*powers)[0].targets["output"], window[0].targets["output"], "targets of both", "targets"
        )
        verdict.same_gradients(scaled.run.gradients(window), plain.run.gradients(window), "gradients of a window")
        for tracked in (scaled, plain):
            tracked.run.update(window)
            tracked.take()
            tracked.check("after an update")


@clause("formats.float8-survives-saving")
@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
@pytest.mark.parametrize("save_point", ["between", "inside"])
def test_amax_history_survives_saving(
    subject: Subject, verdict: Verdict, tmp_path: Path, used: bool, save_point: str
) -> None:
    expected.rule_of(subject)
    need(subject, Capability.CHECKPOINT)
    recipe = expected.STILL.replace(accumulation=2) if save_point == "inside" else expected.STILL
    powers = [((a, b), (a - 2, b - 2)) if save_point == "inside" else ((a, b),) for a, b in expected.WINDOWS]
    followed, other = (expected.TrackedRun(subject, verdict, recipe) for _ in range(2))
    for exponents in powers[:2]:
        followed.update(*exponents)
    window = followed.window(*powers[2])
    if save_point == "inside":
        followed.run.accumulate(window[0], expected.ITEMS)
    followed.run.save(tmp_path)
    if used:
        for exponents in powers[3:]:
            other.update(*exponents)
        other.run.predict(100 * window[0].inputs)
    other.run.restore(tmp_path)
    verdict.same_state(subject.state(other.run), subject.state(followed.run), "the restored run", "load-differs")
    verdict.same_state(expected.memory(other.run), expected.memory(followed.run), "its amax history", "load-differs")
    for run in (followed.run, other.run):
        for part in window[1:] if save_point == "inside" else window:
            run.accumulate(part, expected.ITEMS)
        run.apply()
    followed.take()
    followed.check("of the saved run")
    followed.check("of the restored run", other.run)
    for exponents in powers[3:]:
        window = followed.window(*exponents)
        for run in (followed.run, other.run):
            run.update(window)
        followed.take()
        followed.check("of the saved run, later")
    verdict.same_state(subject.state(other.run), subject.state(followed.run), "both runs later", "goes-on-otherwise")


@clause("formats.float8-survives-saving")
@pytest.mark.parametrize("kind", list(FOREIGN))
def test_other_amax_history_is_refused(subject: Subject, verdict: Verdict, tmp_path: Path, kind: str) -> None:
    expected.rule_of(subject)
    need(subject, Capability.CHECKPOINT)
    saved, into = FOREIGN[kind]
    (window,) = (expected.TrackedRun(subject, verdict, expected.EIGHTHS).window((0, 0)),)
    run, other = (subject.trainer(expected.MODEL, recipe, exact_weights()) for recipe in (saved, into))
    for trainer in (run, other):
        trainer.update(window)
    run.save(tmp_path)
    before, refused = subject.state(other), False
    try:
        other.restore(tmp_path)
    except ValueError:
        refused = True
    verdict.holds(refused, "the save of another kind is refused", signature="loaded")
    verdict.same_state(subject.state(other), before, "the run that refused it", "half-loaded")


@clause("formats.float8-is-no-parameter")
@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_optimizer_does_not_change_amax_history(subject: Subject, verdict: Verdict, kind: str) -> None:
    """The updates change the weights, but the expected amax of inputs and kernels is still known."""
    rule = expected.rule_of(subject).product
    recipe = OPTIMIZERS[kind]
    followed = expected.TrackedRun(subject, verdict, recipe)
    operands: list[tuple[str, Operand]] = [("0.weight", "input"), *((name, "kernel") for name in expected.NAMES)]
    seen: dict[tuple[str, Operand], list[float]] = {operand: [] for operand in operands}
    for of_inputs, of_gradient in expected.WINDOWS:
        window = followed.window(*((of_inputs - part, of_gradient) for part in range(recipe.accumulation)))
        seen["0.weight", "input"].append(max(float(np.abs(part.inputs).max()) for part in window))
        for name in expected.NAMES:
            seen[name, "kernel"].append(float(np.abs(followed.run.parameters()[name]).max()))
        followed.run.update(window)
        for (name, operand), maxima in seen.items():
            history = followed.run.view(AmaxHistories)[name][operand]
            wanted = expected.sorted_history(maxima, expected.HISTORY)
            verdict.equal(np.sort(history.amax), wanted, f"amax history of the {operand} of {name}", "history")
            scale = stored_scales(maxima, expected.formats_of(rule)["kernel"], expected.HISTORY)[-1]
            verdict.within(abs(history.scale / scale - 1.0), SCALE, f"scale of the {operand} of {name}", "scale")


@clause("formats.float8-is-no-parameter")
@pytest.mark.parametrize("kind", ["clip", "decay"])
def test_gradient_amax_is_of_cast_gradients(subject: Subject, verdict: Verdict, kind: str) -> None:
    """The weights stay constant, so that the expected amax of gradients is known."""
    expected.rule_of(subject)
    optimizer = AdamW(0.0, weight_decay=0.5) if kind == "decay" else SGD(0.0)
    followed = expected.TrackedRun(subject, verdict, replace(OPTIMIZERS[kind], optimizer=optimizer))
    for powers in expected.WINDOWS:
        followed.update(powers)


@clause("formats.float8-is-no-parameter")
def test_amax_history_is_not_in_gradient_norm(subject: Subject, verdict: Verdict) -> None:
    """The clipping limit is four times the gradients' norm, and the amax history is far larger than the gradients."""
    expected.rule_of(subject)
    slow = expected.EIGHTHS.replace(optimizer=SGD(2.0**-14))
    probe = expected.TrackedRun(subject, verdict, slow)
    window = probe.window((6, -12))
    squares = [np.vdot(g, g) for g in probe.run.gradients(window).values()]
    norm = float(np.sqrt(np.sum(squares, dtype=np.float64)))
    plain, clipped = (
        subject.trainer(expected.MODEL, slow.replace(clip=clip), exact_weights()) for clip in (None, 4.0 * norm)
    )
    before = plain.parameters()
    for update in (1, 2):
        for run in (plain, clipped):
            run.update(window)
        for name, value in plain.parameters().items():
            moved = np.abs(value.astype(np.float64) - before[name])
            bound = 4 * update * U * (np.abs(before[name]) + 4 * moved)
            share = worst_share(clipped.parameters()[name], value.astype(np.float64), bound)
            verdict.within(share, WITHIN, f"{name} after update {update}", "clipped")
        verdict.differs(before, plain.parameters(), "the update moves weights")
        before = plain.parameters()
    largest = max(float(history["input"].amax.max()) for history in clipped.view(AmaxHistories).values())
    verdict.holds(largest > 8.0 * norm, "the test has a large memory", largest, f"> {8.0 * norm}", "control")


@clause("formats.float8-is-no-parameter")
def test_weight_average_uses_amax_history_of_run(subject: Subject, verdict: Verdict) -> None:
    """The weights stay constant and equal their average, so both must give the same predictions."""
    expected.rule_of(subject)
    followed = expected.TrackedRun(subject, verdict, expected.STILL.replace(average=0.5))
    for powers in expected.WINDOWS:
        followed.update(powers)
        inputs = expected.TrackedRun(subject, verdict, expected.STILL).window((2, 0))[0].inputs
        before = expected.memory(followed.run)
        now, averaged = followed.run.predict(inputs), followed.run.predict_averaged(inputs)
        verdict.same_state(averaged, now, "the prediction by the average", "average-remembers-otherwise")
        verdict.same_state(expected.memory(followed.run), before, "amax history after it", "moved")
