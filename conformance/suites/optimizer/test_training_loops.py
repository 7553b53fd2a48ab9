"""Training loops of add-on libraries: the frequency of a schedule, and the hook before an optimizer step."""

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, need
from frameworks.contract import Capability

_EPOCHS = 3


@clause("accumulation.schedule-frequency")
@pytest.mark.parametrize("epoch", [5, 12])
@pytest.mark.parametrize("frequency", [1, 2, 3, 4])
@pytest.mark.parametrize("k", [1, 3, 4])
def test_schedule_steps_after_every_nth_update(
    subject: Subject, verdict: Verdict, k: int, frequency: int, epoch: int
) -> None:
    need(subject, Capability.SCHEDULE_FREQUENCY)
    steps = subject.framework.count_schedule_steps(frequency=frequency, accumulation=k, epochs=(epoch,) * _EPOCHS)
    verdict.holds(len(steps) >= _EPOCHS * (epoch // k), "updates of all full windows", len(steps), "one a window")
    expected = tuple(update // frequency for update in range(1, len(steps) + 1))
    verdict.equal(steps, expected, "steps of the schedule after each update", "frequency-miscounted")


@clause("scaling.hooks-see-unscaled")
@pytest.mark.parametrize("fused", [False, True], ids=["unfused", "fused"])
@pytest.mark.parametrize("scale", [1.0, 2.0**10])
def test_pre_step_hook_receives_unscaled_gradients(
    subject: Subject, verdict: Verdict, scale: float, fused: bool
) -> None:
    need(subject, Capability.STEP_HOOK)
    gradient = np.array([2.0**-12, -1.0, 0.0, 3.0], np.float32)
    measured = subject.framework.gradient_in_hook(gradient, scale=scale, fused=fused)
    verdict.equal(
        measured.tolist(), gradient.tolist(), f"gradient in the hook at a loss scale of {scale}", "hook-sees-scaled"
    )


@clause("scaling.unscales-before-clipping")
@pytest.mark.parametrize("scale", [1.0, 2.0**10])
def test_clipping_in_native_loop_receives_unscaled_gradients(subject: Subject, verdict: Verdict, scale: float) -> None:
    need(subject, Capability.MANUAL_STEP)
    gradient = np.array([0.5, 0.0, -0.25], np.float32)
    measured = subject.framework.clip_in_manual_step(gradient, limit=1.0, scale=scale)
    verdict.equal(
        measured.tolist(), gradient.tolist(), f"gradient below the limit at a loss scale of {scale}", "clips-scaled"
    )
