"""Overhead of the adapter: a step through it, compared with the framework's native loop."""

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause
from conformance.timing import time_interleaved
from frameworks.native_loop import CASES, FIXTURES, LoopCase, steps
from results.compare.ratio import FEWEST

SAME = 0.01
"""Relative difference of the first losses up to which both sides train the same; rounding makes them differ."""


@clause("cost.adapter-overhead")
@pytest.mark.parametrize("case", [case for case in CASES if not case.mixed], ids=lambda case: case.fixture)
def test_adapter_overhead_over_native_loop(subject: Subject, verdict: Verdict, case: LoopCase) -> None:
    framework = subject.framework
    try:
        hand = steps(framework.name, framework.mode)
    except LookupError as error:
        verdict.abstain(str(error))
    model, batch = FIXTURES[case.fixture]()
    trainer, weights = subject.trainer(model, case.recipe), model.weights(subject.complete_recipe(case.recipe).seed)
    works = {
        "adapter": lambda: trainer.update((batch,)).loss,
        "by hand": hand.make(case.fixture, case.mixed, weights, batch, framework.device),
    }
    first = {side: work() for side, work in works.items()}
    if not np.isclose(first["adapter"], first["by hand"], rtol=SAME):
        verdict.abstain(f"the native loop trains something else: first losses by side are {first}")
    times = time_interleaved(works, FEWEST, np.random.default_rng(subject.seed), framework.measure_time)
    seconds = {side: [spent / 1e9 for spent in times[side]] for side in times}
    verdict.measure(f"seconds a step, {case.label}", "s", seconds["adapter"], control=seconds["by hand"])
