"""The time of one training step of each fixture with each technique, on the host's clock.

A step that the framework refuses, or does not make, is skipped with the reason. So is a technique that raises, for the
suites judge that; a plain step that raises is an error.
"""

import os
from typing import Any

import pytest

from frameworks.contract import Framework, Unsupported
from tools.benchmarks import FIXTURES, PLAIN, NotTheStep, reach_all, settle, techniques

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "XLA_FLAGS")
_THREADS = ("threads", "intra_op_threads")


def test_step(benchmark: Any, framework: Framework, fixture: str, technique: str) -> None:
    model, batch = FIXTURES[fixture]()
    recipe = techniques(framework.recompute_variants())[technique]
    window = batch.into(recipe.accumulation)
    try:
        trainer = framework.trainer(model, recipe)
        settle(trainer, window)
        if recipe.recompute is not None:
            reach_all(framework.trainer(model, recipe), window)
    except (Unsupported, NotTheStep) as refusal:
        pytest.skip(str(refusal))
    except Exception as error:
        if technique == PLAIN:
            raise
        pytest.skip(f"raises {type(error).__name__}: {' '.join(str(error).split())}")
    benchmark.group = fixture
    environment = framework.environment()
    benchmark.extra_info |= {
        "framework": framework.name,
        "version": framework.version(),
        "mode": framework.mode,
        "device": framework.device,
        "device_model": environment.get("device", ""),
        "fixture": fixture,
        "technique": technique,
        "samples": len(batch),
        "threads": next((int(environment[name]) for name in _THREADS if name in environment), None),
        "thread_variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }
    benchmark(framework.measure_time, lambda: trainer.update(window).loss)
