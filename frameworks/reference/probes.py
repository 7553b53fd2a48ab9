"""Attempts of the reference: one small experiment for each capability."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fixtures.arrays import Array
from fixtures.data import digits_batch, exact_batch, sincos_batch
from fixtures.model import Model
from fixtures.models import digits_mlp, exact_linear, exact_stack, scalar, sincos, two_heads
from fixtures.recipe import FLOAT16, SGD, Adam, DynamicScaling, Precision, Recipe, Recompute, StaticScaling, Steps
from frameworks.base import follows_metric, uses_function
from frameworks.contract import Capability, Framework, RankGroup, Trainer
from frameworks.operations import CATALOGUE
from frameworks.reference.core.rounding import Rounding
from frameworks.reference.training.trainer import ReferenceTrainer

_BATCH = exact_batch()
_SCALING = DynamicScaling(2.0**10, interval=1)


class Probed(Framework, Protocol):
    """The part of the reference that probes use: a framework whose runs expose their decisions."""

    rounding: Rounding

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer: ...


def _filled(run: ReferenceTrainer, value: float) -> dict[str, Array]:
    return {name: np.full(shape, value) for name, shape in run.model.parameter_shapes().items()}


def _scalar(framework: Probed, **changes: Any) -> ReferenceTrainer:
    return framework.run(scalar(), Recipe(SGD(0.5)).but(**changes))


def _op(framework: Probed, op: str, **scope: Any) -> str:
    with framework.autocast(FLOAT16, **scope):
        return framework.run_op(op, *CATALOGUE[op]()).dtype


def _precision(precision: Precision) -> Callable[[Probed], bool]:
    def probe(framework: Probed) -> bool:
        run = framework.run(digits_mlp((8,)), Recipe(SGD(), precision))
        run.update((digits_batch(4),))
        low = framework.rounding.dtype(precision.format)
        result = run.parameters()["0.weight"].dtype, run.master_parameters()["0.weight"].dtype
        wide = framework.rounding.dtype("float32")
        expected = {"O1": (wide, wide), "O2": (low, wide), "O3": (low, low)}[precision.level]
        return result == expected and run.predict(digits_batch(2).inputs)["output"].dtype == low

    return probe


def _moves(framework: Probed) -> bool:
    run = _scalar(framework, scaling=_SCALING)
    grown = run.apply_gradients(_filled(run, 0.5)).scale_after
    return grown == 2.0**11 and run.apply_gradients(_filled(run, np.inf)).scale_after == 2.0**10


def _stays(framework: Probed) -> bool:
    run = _scalar(framework, scaling=StaticScaling(8.0))
    return [run.apply_gradients(_filled(run, v)).scale_after for v in (0.5, np.inf, 0.5)] == [8.0] * 3


def _factors(framework: Probed) -> bool:
    run = _scalar(framework, scaling=DynamicScaling(2.0**10, growth=4.0, backoff=0.25, interval=1))
    return [run.apply_gradients(_filled(run, v)).scale_after for v in (0.5, np.inf)] == [2.0**12, 2.0**10]


def _unscales(framework: Probed) -> bool:
    run = _scalar(framework, scaling=_SCALING)
    run.apply_gradients(_filled(run, 0.5), unscale_calls=1)
    return bool(run.parameters()["0.output.bias"][0] == -0.25)


def _unscales_once(framework: Probed) -> bool:
    run = _scalar(framework, scaling=_SCALING)
    try:
        run.apply_gradients(_filled(run, 0.5), unscale_calls=2)
    except RuntimeError:
        return True
    return False


def _partly_skipped(framework: Probed) -> bool:
    run = _scalar(framework, scaling=_SCALING, optimizers=2)
    first, second = run.parameters()
    return not run.apply_gradients({first: np.full((1, 1), np.inf), second: np.ones(1)}).skipped


def _two_losses(framework: Probed) -> bool:
    batch = type(_BATCH)(_BATCH.inputs, dict.fromkeys("ab", _BATCH.targets["output"][:, :2]))
    run = framework.run(two_heads(), Recipe(SGD(), separate_losses=True))
    return len(run.gradients((batch,))) == len(run.parameters())


def _accumulates(framework: Probed) -> bool:
    whole, parts = (framework.run(exact_linear(), Recipe(SGD(0.5))) for _ in range(2))
    whole.update((_BATCH,))
    parts.update(_BATCH.into(4))
    return all(np.array_equal(value, whole.parameters()[name]) for name, value in parts.parameters().items())


def _flushes(framework: Probed) -> bool:
    run = framework.run(exact_linear(), Recipe(SGD(0.5), accumulation=4))
    run.accumulate(_BATCH, _BATCH.items)
    return not run.apply().skipped


def _recomputes(depth: int) -> Callable[[Probed], bool]:
    def probe(framework: Probed) -> bool:
        run = framework.run(exact_stack(), Recipe(recompute=Recompute(1, depth=2 if depth == 2 else 1)))
        run.update((_BATCH,))
        return run.segment_calls() == (2,)

    return probe


def _cases(framework: Probed) -> bool:
    x, w = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    plain, result = framework.recompute("plain", x, w), framework.recompute("keyword", x, w)
    return result.w is not None and plain.w is not None and np.array_equal(result.w, plain.w)


def _clips(framework: Probed) -> bool:
    run = _scalar(framework, clip=1.0)
    run.apply_gradients(_filled(run, 8.0))
    return bool(run.parameters()["0.output.bias"][0] > -1.0)


def _schedules(framework: Probed) -> bool:
    run = _scalar(framework, schedule=Steps((1,), (1.0, 0.5)))
    return [run.apply_gradients(_filled(run, 1.0)).learning_rate for _ in range(2)] == [0.5, 0.25]


def _skips_missing(framework: Probed) -> bool:
    run = _scalar(framework)
    first, second = run.parameters()
    run.apply_gradients({first: np.ones((1, 1)), second: None})
    return bool(run.parameters()[second][0] == 0.0 and run.parameters()[first][0, 0] == 0.5)


def _averages(framework: Probed) -> bool:
    run = _scalar(framework, average=0.5)
    for _ in range(2):
        run.apply_gradients(_filled(run, 1.0))
    return bool(run.optimizer_state()["average/0.output.bias"][0] == -0.75)


def _keeps_codes(framework: Probed) -> bool:
    run = framework.run(exact_linear(1, 4096), Recipe(Adam(state_bits=8)))
    run.apply_gradients(_filled(run, 1.0))
    state = run.optimizer_state()
    result = {state[f"codes/{slot}/0.output.bias"].dtype for slot in ("first_moment", "second_moment")}
    return result == {np.dtype(np.uint8)} and bool((run.parameters()["0.output.bias"] < 0).all())


def shards_are_encoded(rank_group: Callable[[Model], RankGroup], run: Callable[[Model, Recipe], Trainer]) -> bool:
    """Whether ranks with sharded 8-bit moments equal a run without ranks after an update."""
    model = exact_linear(1, 4224)
    shapes = model.parameter_shapes()
    gradients = {name: -np.linspace(1.0, 2.0, int(np.prod(shape))).reshape(shape) for name, shape in shapes.items()}
    ranks, alone = rank_group(model), run(model, Recipe(Adam(state_bits=8)))
    ranks.apply_gradients([[gradients]] * ranks.count)
    alone.apply_gradients(gradients)
    expected = alone.state()
    return all(np.array_equal(state[name], expected[name]) for state in ranks.states() for name in expected)


def _restores(framework: Probed) -> bool:
    run = _scalar(framework)
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        run.apply_gradients(_filled(run, 1.0))
        run.restore(Path(folder))
    return bool(run.parameters()["0.output.bias"][0] == 0.0)


def restores_in_order(framework: Probed) -> bool:
    """Whether parts that are loaded in reverse give the saved run."""
    run = _scalar(framework, schedule=Steps((1,), (1.0, 0.5)))
    with tempfile.TemporaryDirectory() as folder:
        run.apply_gradients(_filled(run, 1.0))
        run.save(Path(folder))
        resumed = _scalar(framework, schedule=Steps((1,), (1.0, 0.5)))
        resumed.restore_in(Path(folder), "optimizer-first")
    return resumed.learning_rate() == 0.25 and bool(resumed.parameters()["0.output.bias"][0] == -0.5)


def _traces(framework: Probed) -> bool:
    run = framework.run(exact_stack(), Recipe())
    traced, bias = run.trace(_BATCH), run.gradients((_BATCH,))["3.output.bias"]
    return list(traced.outputs) == [*"012", "3.output"] and np.array_equal(traced.gradients["3.output"].sum(0), bias)


def _peak(framework: Probed) -> bool:
    return _scalar(framework).peak_bytes() > 0


def _tf32(framework: Probed) -> bool:
    """Whether a float32 product keeps a factor that TensorFloat-32 rounds to 1."""
    factor = np.full((1, 1), 1.0 + 2.0**-12, np.float32)
    with framework.tf32(True):
        return bool(framework.run_op("matmul", factor, np.ones((1, 1), np.float32)).value == 1.0)


ATTEMPTS: dict[Capability, Callable[[Probed], bool]] = {
    **{
        Capability(f"precision.{p.label}"): _precision(p)
        for p in (Precision(level, name) for level in ("O1", "O2", "O3") for name in ("float16", "bfloat16"))
    },
    Capability.FLOAT64_HEADS: lambda f: (
        f.run(sincos(4), Recipe(SGD(), FLOAT16)).predict(sincos_batch(2).inputs)["sin"].dtype == np.float64
    ),
    Capability.AUTOCAST_SCOPE: lambda f: _op(f, "matmul") == "float16" and _op(f, "matmul", enabled=False) == "float32",
    Capability.OPERATIONS: lambda f: all(_op(f, op) for op in CATALOGUE),
    Capability.AUTOCAST_LISTS: lambda f: _op(f, "softmax", low=("softmax",)) == "float16",
    Capability.DYNAMIC_SCALING: _moves,
    Capability.STATIC_SCALING: _stays,
    Capability.SCALING_FACTORS: _factors,
    Capability.SCALING_DISABLED: lambda f: _scalar(f, scaling=DynamicScaling(enabled=False)).scaler is None,
    Capability.EXPLICIT_UNSCALE: _unscales,
    Capability.SECOND_UNSCALE: _unscales_once,
    Capability.TWO_OPTIMIZERS: _partly_skipped,
    Capability.TWO_LOSSES: _two_losses,
    Capability.ACCUMULATION: _accumulates,
    Capability.PARTIAL_WINDOW: _flushes,
    Capability.RECOMPUTE: _recomputes(1),
    Capability.RECOMPUTE_NESTED: _recomputes(2),
    Capability.RECOMPUTE_CASES: _cases,
    Capability.SEGMENT_CALLS: _recomputes(1),
    Capability.GROUPS: lambda f: not _scalar(f, groups=2).update((exact_batch(4, 1, 1),)).skipped,
    Capability.CLIP: _clips,
    Capability.SCHEDULE: _schedules,
    Capability.MISSING_GRADIENTS: _skips_missing,
    Capability.AVERAGE: _averages,
    Capability.ADAM_8BIT: _keeps_codes,
    Capability.FEED: lambda f: not (run := _scalar(f)).apply_gradients(_filled(run, 1.0)).skipped,
    Capability.CHECKPOINT: _restores,
    Capability.SAVED_BYTES: lambda f: f.run(exact_stack(), Recipe()).saved_bytes(_BATCH) > 0,
    Capability.PEAK_BYTES: _peak,
    Capability.TRACE: _traces,
    Capability.SCHEDULE_FREQUENCY: lambda f: f.scheduled(frequency=2, accumulation=1, epochs=(3,)) == (0, 1, 1),
    Capability.FUNCTION_USES: lambda f: uses_function(f.function_used),
    Capability.PLATEAU: lambda f: follows_metric(f.plateau),
    Capability.LOADED_CHECKPOINT: lambda f: f.loaded_run("float32", 1, 0.5).moved > 0,
    Capability.MANUAL_STEP: lambda f: f.clipped_by_hand(np.ones(1), limit=2.0, scale=8.0).tolist() == [1.0],
    Capability.STEP_HOOK: lambda f: f.shown_to_hook(np.ones(1), scale=8.0, fused=False).tolist() == [1.0],
    Capability.PLAIN_LOOP: lambda f: not f.plain_trainer(exact_stack(), Recipe()).update((_BATCH,)).skipped,
    Capability.TF32: _tf32,
}
