"""Loss scaling: properties for generated settings, schedules, overflow positions, and magnitudes."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import strategies as st

from conformance.checks.api import Scale, Subject, Verdict, clause, full, need, spike_gradients
from conformance.search import explore
from fixtures.arrays import Array
from fixtures.model import Batch
from fixtures.models import scalar, sincos, two_heads
from fixtures.recipe import FLOAT16, SGD, DynamicScaling, Recipe
from frameworks.contract import Capability

RATE = 2.0**-6
QUIET = 2.0**-10
STEPS = st.lists(st.sampled_from(["quiet", "quiet", "quiet", "huge", "inf", "-inf", "nan"]), min_size=8, max_size=32)
FORMATS = {"float32": two_heads, "float64-heads": sincos}


@dataclass(frozen=True)
class Schedule:
    """A scaler's settings, as exponents of 2 except for the interval, and the kind of gradient in each update.

    "quiet" is a gradient of 2^-10. "huge" is a gradient that the scale multiplies to the upper end of float32. The
    other kinds have one element that is not finite.
    """

    initial: int
    growth: int
    backoff: int
    interval: int
    steps: tuple[str, ...]

    def scaling(self, subject: Subject, factors: str) -> DynamicScaling:
        """Return the settings, with the framework's own factors or the chosen ones."""
        initial = max(2.0**self.initial, subject.conventions.scaler.minimum)
        if factors == "own":
            return DynamicScaling(initial, interval=self.interval)
        need(subject, Capability.SCALING_FACTORS)
        return DynamicScaling(initial, 2.0**self.growth, 2.0**self.backoff, self.interval)

    @staticmethod
    def value(step: str, scale: float) -> float:
        """Return the gradient value of an update that is made at `scale`."""
        match step:
            case "quiet":
                return QUIET
            case "huge":
                return 2.0 ** min(100, 126 - math.frexp(scale)[1])
            case _:
                return float(step)


SCHEDULES = st.builds(
    Schedule,
    initial=st.integers(-6, 24),
    growth=st.integers(1, 2),
    backoff=st.integers(-3, -1),
    interval=st.integers(1, 4),
    steps=STEPS.map(tuple),
)


def automaton(subject: Subject, scaling: DynamicScaling) -> Scale:
    """Return the declared automaton with a recipe's settings."""
    rule = subject.conventions.scaler
    return Scale(
        scale=scaling.initial or rule.initial,
        growth=scaling.growth or rule.growth,
        backoff=scaling.backoff or rule.backoff,
        interval=scaling.interval or rule.interval,
        minimum=rule.minimum,
        maximum=rule.maximum,
    )


def update_parameters(values: dict[str, Array], gradients: dict[str, Array]) -> dict[str, Array]:
    """Return the parameters after an update by SGD at `RATE`, a power of two."""
    return {n: value - (gradients[n] * value.dtype.type(RATE)).astype(value.dtype) for n, value in values.items()}


@clause("scaling.automaton")
@pytest.mark.parametrize("factors", ["own", "chosen"])
@explore(SCHEDULES, examples=15)
def test_scale_and_skips_follow_automaton(subject: Subject, verdict: Verdict, case: Schedule, factors: str) -> None:
    scaling = case.scaling(subject, factors)
    trainer = subject.trainer(scalar(), Recipe(SGD(RATE), scaling=scaling))
    expected, updates, states, parameters = automaton(subject, scaling), [], [], trainer.parameters()
    for step in case.steps:
        gradients = spike_gradients(trainer, case.value(step, expected.scale), base=QUIET)
        finite = step in ("quiet", "huge")
        updates.append(trainer.apply_gradients(gradients))
        expected = expected.after(finite)
        states.append(expected)
        parameters = update_parameters(parameters, gradients) if finite else parameters
        verdict.equal(trainer.parameters(), parameters, f"parameters after update {len(updates)}, {step}")
    verdict.trace("scale", scale=[u.scale_after for u in updates])
    verdict.equal([u.scale_after for u in updates], [s.scale for s in states], "scale after each update")
    skips = [step not in ("quiet", "huge") for step in case.steps]
    verdict.equal([u.skipped for u in updates], skips, "skipped updates")
    counters = [u.good_steps for u in updates]
    if None not in counters:
        verdict.equal(counters, [s.good for s in states], "growth counter after each update")


@dataclass(frozen=True)
class Hit:
    """Position of a non-finite value; positions beyond the last wrap around."""

    value: str
    parameter: int
    element: int
    micro_batch: int


@dataclass(frozen=True)
class Hits:
    """A run of windows of `micro_batches`; a window with None has no hit."""

    micro_batches: int
    groups: int
    windows: tuple[Hit | None, ...]


HITS = st.builds(
    Hits,
    micro_batches=st.sampled_from([1, 2, 4]),
    groups=st.integers(1, 2),
    windows=st.lists(
        st.none()
        | st.builds(
            Hit,
            value=st.sampled_from(["inf", "-inf", "nan"]),
            parameter=st.integers(0, 7),
            element=st.integers(0, 63),
            micro_batch=st.integers(0, 3),
        ),
        min_size=1,
        max_size=12,
    ).map(tuple),
)


@clause("scaling.detects-every-group")
@pytest.mark.parametrize("formats", FORMATS)
@explore(HITS, examples=4)
def test_overflow_anywhere_skips_its_window(subject: Subject, verdict: Verdict, case: Hits, formats: str) -> None:
    declares, whole = subject.framework.declares, subject.conventions.nonfinite_micro_batch == "drop-window"
    count = case.micro_batches if declares(Capability.ACCUMULATION).supported and whole else 1
    recipe = Recipe(SGD(RATE), scaling=DynamicScaling(2.0**20), accumulation=count)
    trainer = subject.trainer(
        FORMATS[formats](8), recipe.replace(groups=case.groups if declares(Capability.GROUPS).supported else 1)
    )
    for index, hit in enumerate(case.windows):
        before, parameters = subject.state(trainer), trainer.parameters()
        window = [full(trainer, 2.0**-3) for _ in range(count)]
        if hit is not None:
            struck = list(window[0])[hit.parameter % len(window[0])]
            window[hit.micro_batch % count][struck].reshape(-1)[hit.element % window[0][struck].size] = float(hit.value)
        update = trainer.apply_gradients(*window)
        verdict.equal(update.skipped, hit is not None, f"whether window {index} is skipped", "applied-non-finite")
        if hit is None:
            verdict.equal(
                trainer.parameters(), update_parameters(parameters, full(trainer, 2.0**-3)), "parameters of a window"
            )
        else:
            verdict.same_state(subject.state(trainer), before, f"training state after {hit}", ignoring=("scaler/",))


@dataclass(frozen=True)
class Small:
    """Exponents of 2: of the scale, and for each sample of the scaled output gradient and of the input.

    The exponent of the scaled weight gradient is the sum of a sample's two, and float16 can represent it.
    """

    scale: int
    samples: tuple[tuple[int, int], ...]


def _sample(output: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.just(output), st.integers(max(-14, -24 - output), min(4, 15 - output)))


SMALL = st.builds(
    Small,
    scale=st.integers(0, 24),
    samples=st.lists(st.integers(-24, 14).flatmap(_sample), min_size=1, max_size=6).map(tuple),
)


@clause("scaling.rescues-small-gradients")
@explore(SMALL, examples=6)
def test_scaled_small_gradients_do_not_underflow(subject: Subject, verdict: Verdict, case: Small) -> None:
    need(subject, Capability.O1_FLOAT16)
    trainer = subject.trainer(scalar(0.0), Recipe(SGD(1.0), FLOAT16, scaling=DynamicScaling(2.0**case.scale)))
    weight, bias = trainer.parameters()
    for output, exponent in case.samples:
        slope = 2.0 ** (output - case.scale)
        batch = Batch(np.full((1, 1), 2.0**exponent, np.float32), {"output": np.full((1, 1), -slope / 2, np.float32)})
        expected = {weight: np.full((1, 1), slope * 2.0**exponent, np.float32), bias: np.full(1, slope, np.float32)}
        verdict.same_gradients(
            trainer.gradients((batch,)), expected, f"gradients at 2^{output} and 2^{exponent}", "gradient-underflows"
        )
