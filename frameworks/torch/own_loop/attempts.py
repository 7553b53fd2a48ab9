"""Whether a user's loop follows each attribute of a recipe: found out by training with it."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from fixtures.arrays import Array
from fixtures.data import exact_batch
from fixtures.model import Model
from fixtures.models import exact_linear, exact_stack
from fixtures.recipe import BFLOAT16, FLOAT16, SGD, DynamicScaling, Precision, Recipe, Recompute, StaticScaling, Steps
from fixtures.schedules import OneCycle
from frameworks.contract import Capability
from frameworks.torch.core.arrays import DTYPES
from frameworks.torch.own_loop.trainer import LoopTrainer, ones

Make = Callable[[Model, Recipe], LoopTrainer]
LoopAttempt = Callable[[Make], bool]
_RECIPE = Recipe(SGD(0.5))


def _same(left: Mapping[str, Array], right: Mapping[str, Array]) -> bool:
    return all(np.array_equal(value, right[name]) for name, value in left.items())


def _casts(precision: Precision, make: Make) -> bool:
    run, seen = make(exact_linear(), _RECIPE.replace(precision=precision)), list[torch.dtype]()
    run.network.heads["output"].register_forward_hook(lambda *given: seen.append(given[-1].dtype))
    run.accumulate(exact_batch(4), 4)
    return seen[0] == DTYPES[precision.format]


def _scales(make: Make) -> bool:
    scaler = make(exact_linear(), _RECIPE.replace(scaling=DynamicScaling())).scaler
    return scaler is not None and scaler.is_enabled()


def _scales_by_factors(make: Make) -> bool:
    run = make(exact_linear(), _RECIPE.replace(scaling=DynamicScaling(16.0, 4.0, 0.125, 3)))
    return run.scaler_settings() == {"initial": 16.0, "growth": 4.0, "backoff": 0.125, "interval": 3.0}


def _scales_by_a_constant(make: Make) -> bool:
    run = make(exact_linear(), _RECIPE.replace(scaling=StaticScaling(8.0)))
    return [run.apply_gradients(ones(run, value)).scale_after for value in (1.0, math.inf, 1.0)] == [8.0, 8.0, 8.0]


def _disables_scaling(make: Make) -> bool:
    scaler = make(exact_linear(), _RECIPE.replace(scaling=DynamicScaling(enabled=False))).scaler
    return scaler is None or not scaler.is_enabled()


def _moves(micro_batches: int, make: Make) -> bool:
    """Whether a window of so many micro-batches, of four, moves the parameters."""
    run = make(exact_linear(), _RECIPE.replace(accumulation=4))
    before = run.parameters()
    for batch in exact_batch(8).into(4)[:micro_batches]:
        run.accumulate(batch, 2 * micro_batches)
    run.apply()
    return not _same(before, run.parameters())


def _feeds(make: Make) -> bool:
    run = make(exact_linear(), _RECIPE)
    before = run.parameters()
    run.apply_gradients(ones(run))
    return not _same(before, run.parameters())


def _feeds_one(make: Make) -> bool:
    run = make(exact_linear(), _RECIPE)
    before = run.parameters()
    name, value = next(iter(ones(run).items()))
    run.apply_gradients({name: value})
    after = run.parameters()
    return not np.array_equal(before.pop(name), after[name]) and _same(before, after)


def _clips(make: Make) -> bool:
    after = []
    for clip in (None, 2.0**-8):
        run = make(exact_linear(), _RECIPE.replace(clip=clip))
        run.apply_gradients(ones(run))
        after.append(run.parameters())
    return not _same(*after)


def _schedules(make: Make) -> bool:
    run = make(exact_linear(), _RECIPE.replace(schedule=Steps((1,), (1.0, 0.5))))
    run.apply_gradients(ones(run))
    return run.steppers[0].learning_rate != 0.5


CYCLE = OneCycle(4.0, 3, 10, 0.25, momenta=(0.75, 0.25))


def moves_momentum(make: Make) -> bool:
    """Whether a loop follows the momenta of a schedule too."""
    run = make(exact_linear(), _RECIPE.replace(optimizer=SGD(0.5, momentum=0.5), schedule=CYCLE))
    run.apply_gradients(ones(run))
    return run.steppers[0].optimizer.param_groups[0].get("momentum", 0.5) != 0.5


def _averages(make: Make) -> bool:
    return make(exact_linear(), _RECIPE.replace(average=0.5)).average is not None


def _recomputes(make: Make) -> bool:
    run, calls = make(exact_stack(), _RECIPE.replace(recompute=Recompute(2))), list[int]()
    run.network.built[0].register_forward_hook(lambda *_: calls.append(1))
    run.accumulate(exact_batch(4), 4)
    return len(calls) > 1


def _restores(make: Make) -> bool:
    run, other = (make(exact_linear(), _RECIPE) for _ in range(2))
    run.apply_gradients(ones(run))
    with TemporaryDirectory() as folder:
        run.save(Path(folder))
        other.restore(Path(folder))
    return _same(run.parameters(), other.parameters())


def _shows_the_pass(make: Make) -> bool:
    """Whether the gradient of the head's outputs, added up over samples, is that of its bias."""
    run = make(exact_linear(), _RECIPE)
    trace = run.trace(exact_batch(4))
    return np.array_equal(trace.gradients["0.output"].sum(0), trace.parameters["0.output.bias"])


ATTEMPTS: Mapping[Capability, tuple[str, LoopAttempt]] = {
    Capability.O1_FLOAT16: ("recipe.autocast", partial(_casts, FLOAT16)),
    Capability.O1_BFLOAT16: ("recipe.autocast", partial(_casts, BFLOAT16)),
    Capability.DYNAMIC_SCALING: ("recipe.scaling", _scales),
    Capability.SCALING_FACTORS: ("the factors in recipe.scaling", _scales_by_factors),
    Capability.STATIC_SCALING: ("recipe.static_scale", _scales_by_a_constant),
    Capability.SCALING_DISABLED: ("enabled=False in recipe.scaling", _disables_scaling),
    Capability.ACCUMULATION: ("all micro-batches of a window", partial(_moves, 4)),
    Capability.PARTIAL_WINDOW: ("a window of fewer micro-batches", partial(_moves, 1)),
    Capability.FEED: ("the losses that the network gives", _feeds),
    Capability.MISSING_GRADIENTS: ("that a parameter has no gradient", _feeds_one),
    Capability.CLIP: ("recipe.clip", _clips),
    Capability.SCHEDULE: ("recipe.schedule", _schedules),
    Capability.AVERAGE: ("recipe.average", _averages),
    Capability.RECOMPUTE: ("recipe.recompute", _recomputes),
    Capability.CHECKPOINT: ("what was saved", _restores),
    Capability.TRACE: ("", _shows_the_pass),
}
"""What a loop ignores where an attempt without an exception shows no effect, and the attempt, by capability."""
