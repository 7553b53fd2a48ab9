"""A user's own training loop as a framework of the suite: `--framework=my_training:Loop`.

A loop is any class with the three methods of `TrainingLoop`; it need not import this module. Optional methods are
`predict(inputs)`, `state()` and `load(state)`. The suite reads everything else from the objects that are attributes of
the loop: optimizers, schedulers, an `AveragedModel` and a `GradScaler`.
"""

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from fixtures.arrays import Array
from fixtures.data import exact_batch
from fixtures.model import Batch, Model, Window
from fixtures.models import exact_linear, exact_stack
from fixtures.recipe import BFLOAT16, FLOAT16, SGD, DynamicScaling, Precision, Recipe, Recompute, StaticScaling, Steps
from fixtures.schedules import OneCycle
from frameworks.base import same_parts
from frameworks.contract import Attempt, Capability, Gradients, OpResult, Unsupported, Update
from frameworks.registry import UnknownFramework
from frameworks.torch.core.layers import Network, item_losses
from frameworks.torch.core.settings import DTYPES, to_array, to_tensor
from frameworks.torch.framework import TorchProcess
from frameworks.torch.training.optimizers import (
    Stepper,
    constant_scale,
    dynamic_arguments,
    optimizer_kind,
    unscale_gradient,
)
from frameworks.torch.training.trainer import TorchTrainer

_PLAIN = (bool, int, float, str, type(None))
_RESCALED = "step changes gradients, so that those inside a pass are not those of the update"


@dataclass
class LoopRecipe:
    """A recipe for a loop.

    Attributes:
        device: "cpu", "cuda" or the type of another accelerator.
        optimizer: makes the optimizer of some parameters or groups of them, with its learning rate.
        autocast: arguments of `torch.autocast` after the device.
        scaling: arguments of `torch.amp.GradScaler` after the device.
        static_scale: argument of `GradScaler.update` that keeps the scale; None for a dynamic scale.
        accumulation: micro-batches in a full window.
        clip: largest norm of the gradients, None for no clipping.
        schedule: factor of the learning rate after so many applied updates, for `LambdaLR`; None for none.
        average: decay of an exponential moving average of the weights, None for none.
        recompute: how many segments of `network.layers` to recompute in the backward pass, 0 for none.
    """

    device: str
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer]
    autocast: dict[str, Any]
    scaling: dict[str, Any]
    static_scale: float | None
    accumulation: int
    clip: float | None
    schedule: Callable[[int], float] | None
    average: float | None
    recompute: int


def loop_recipe(recipe: Recipe, device: str) -> LoopRecipe:
    """The recipe for a loop."""
    kind, options = optimizer_kind(recipe)
    low = None if recipe.precision.level == "O0" else DTYPES[recipe.precision.format]
    match recipe.scaling:
        case None:
            scaling: dict[str, Any] = {"enabled": False}
        case StaticScaling(scale=scale):
            scaling = {"init_scale": float(scale)}
        case DynamicScaling() as dynamic:
            scaling = dynamic_arguments(dynamic)
    return LoopRecipe(
        device=device,
        optimizer=lambda parameters: kind(parameters, **options),
        autocast={"enabled": False} if low is None else {"dtype": low},
        scaling=scaling,
        static_scale=constant_scale(recipe),
        accumulation=recipe.accumulation,
        clip=recipe.clip,
        schedule=None if recipe.schedule is None else recipe.schedule.factor,
        average=recipe.average,
        recompute=0 if recipe.recompute is None else recipe.recompute.segments,
    )


class LoopNetwork(Network):
    """The network of a loop: returns the loss of each item if it is called with targets, else the outputs by head.

    Attributes:
        losses: the losses of each call with targets since the last `take_loss`.
        fed: a loss to return instead, for any inputs.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.kinds = model.losses
        self.losses: list[torch.Tensor] = []
        self.fed: torch.Tensor | None = None

    def forward(self, inputs: torch.Tensor, targets: Mapping[str, torch.Tensor] | None = None) -> Any:
        if self.fed is not None:
            self.losses.append(self.fed.detach())
            return self.fed
        outputs = super().forward(inputs)
        if targets is None:
            return outputs
        losses = item_losses(self.kinds, outputs, targets)
        self.losses.append(losses.detach())
        return losses

    def take_loss(self) -> float:
        """The sum of the losses of the one micro-batch since the last call.

        Raises:
            ValueError: there was none.
        """
        losses, self.losses = self.losses, []
        if not losses:
            raise ValueError("micro_batch got no losses, want a call of network(inputs, targets)")
        return float(losses[0].sum())


class LoopStepper(Stepper):
    """An optimizer that a loop has made, with its scheduler."""

    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: LRScheduler | None) -> None:
        self.optimizer = optimizer
        self.applied = self.hook_calls = 0
        self.optimizer.register_step_post_hook(self._count)
        self.scheduler = scheduler


def _flatten(values: Iterable[Any]) -> Iterator[Any]:
    """The values, each once, with the elements of dictionaries, lists and tuples in their place."""
    seen: set[int] = set()
    for value in values:
        if isinstance(value, dict):
            elements: Iterable[Any] = value.values()
        else:
            elements = value if isinstance(value, list | tuple) else (value,)
        for element in elements:
            if id(element) not in seen:
                seen.add(id(element))
                yield element


class PlainAttributes:
    """The attributes of a loop that are numbers or strings, as a part of a checkpoint."""

    def __init__(self, loop: object) -> None:
        self._loop = loop

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self._loop).items() if isinstance(value, _PLAIN)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self._loop).update(state)


class OwnState:
    """A loop's own `state` and `load`, as a part of a checkpoint."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def state_dict(self) -> dict[str, Any]:
        return dict(self._loop.state())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a state whose parts are those of the loop now; empty parts, such as a disabled scaler's, do not count.

        Raises:
            ValueError: a part is missing, in the state or in the loop.
        """
        same_parts(Path("state"), _find_nonempty(state), _find_nonempty(self.state_dict()))
        self._loop.load(state)


def _find_nonempty(state: Mapping[str, Any]) -> list[str]:
    return [name for name, part in state.items() if not (isinstance(part, Mapping) and not part)]


class LoopTrainer(TorchTrainer):
    """A run of a user's loop, which `make` creates and `setup` prepares.

    Attributes:
        objects: the loop's attributes, including those within lists, tuples and dictionaries.
    """

    network: LoopNetwork

    def __init__(
        self, make: Callable[[], Any], model: Model, recipe: Recipe, weights: Mapping[str, Array] | None, device: str
    ) -> None:
        self.loop = make()
        self.asked = loop_recipe(recipe, device)
        super().__init__(model, recipe, weights, device, "loop")

    def _network(self) -> Network:
        return LoopNetwork(self.model)

    def prepare(self) -> None:
        with self.stream.open():
            self.loop.setup(self.network, self.asked)
        self.objects = list(_flatten(vars(self.loop).values()))

    def _make_average(self) -> AveragedModel | None:
        return next((value for value in self.objects if isinstance(value, AveragedModel)), None)

    def _steppers(self) -> list[Stepper]:
        optimizers = [value for value in self.objects if isinstance(value, torch.optim.Optimizer)]
        if not optimizers:
            raise ValueError("setup left no torch.optim.Optimizer on self, want one: self.optimizer = recipe.optimizer")
        schedulers = {id(value.optimizer): value for value in self.objects if isinstance(value, LRScheduler)}
        return [LoopStepper(optimizer, schedulers.get(id(optimizer))) for optimizer in optimizers]

    def _make_scaler(self) -> torch.amp.GradScaler | None:
        return next((value for value in self.objects if isinstance(value, torch.amp.GradScaler)), None)

    # one window

    def _pass(self, batch: Batch, items: int, scaler: torch.amp.GradScaler | None) -> float:
        loaded = self._load(batch)
        self.network.losses.clear()
        with self.stream.open():
            self.loop.micro_batch(loaded.inputs, loaded.targets, items)
        return self.network.take_loss()

    def _own_step(self) -> float | None:
        with self.stream.open():
            norm = self.loop.step()
        return None if norm is None else float(norm)

    def _make_update(self, unscale_calls: int | None, inject: Gradients | None) -> Update:
        before, rate = self._scale(), self.steppers[0].learning_rate
        applied = [stepper.applied for stepper in self.steppers]
        norm = self._own_step()
        skipped = applied == [stepper.applied for stepper in self.steppers]
        return self._report(before, rate, norm, skipped=skipped)

    def _require_manual(self, unscales: bool) -> None:
        raise self.refusal(Capability.EXPLICIT_UNSCALE)

    def _feed(self, gradients: Mapping[str, Array], micro_batches: int) -> None:
        self.network.fed = self._sum_products(gradients).reshape(1)
        try:
            with self.stream.open():
                inputs = torch.zeros(1, *self.model.sample, device=self.device)
                self.loop.micro_batch(inputs, {}, micro_batches)
        finally:
            self.network.fed = None
            self.network.losses.clear()

    def _gradients(self, window: Window, items: int) -> dict[str, Array]:
        """The gradients at the optimizers' step; those before `step` if the recipe clips or no optimizer steps."""
        taken: dict[str, Array] = {}
        with self._undone(), ExitStack() as hooks:
            for slot in self.slots.values():
                slot.tensor.grad = None
            self._passes(window, items, None)
            scale = self._scale()
            gradients = {name: unscale_gradient(value, scale) for name, value in self.accumulator().items()}
            for stepper in self.steppers:
                hook = stepper.optimizer.register_step_pre_hook(lambda *_: taken.update(self.accumulator()))
                hooks.callback(hook.remove)
            self._own_step()
        return gradients if self.recipe.clip is not None or not taken else taken

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """A context at whose end everything except buffers and random streams is restored."""
        parts = {name: part for name, part in self._loop_parts().items() if part is not self.network}
        states = deepcopy({name: part.state_dict() for name, part in parts.items()})
        values = {name: slot.tensor.detach().clone() for name, slot in self.slots.items()}
        former = {name: slot.tensor.grad for name, slot in self.slots.items()}
        applied = [stepper.applied for stepper in self.steppers]
        try:
            yield
        finally:
            for name, part in parts.items():
                part.load_state_dict(states[name])
            for name, slot in self.slots.items():
                slot.tensor.data.copy_(values[name])
                slot.tensor.grad = former[name]
            for stepper, count in zip(self.steppers, applied, strict=True):
                stepper.applied = count

    # readings

    def predict(self, inputs: Array) -> dict[str, Array]:
        own = getattr(self.loop, "predict", None)
        if own is None:
            training = self.network.training
            try:
                return super().predict(inputs)
            finally:
                self.network.train(training)
        with self.stream.open():
            outputs = own(to_tensor(inputs, self.device))
        return {name: to_array(value) for name, value in outputs.items()}

    def segment_calls(self) -> tuple[int, ...]:
        raise self.refusal(Capability.SEGMENT_CALLS)

    def saved_bytes(self, batch: Batch) -> int:
        raise self.refusal(Capability.SAVED_BYTES)

    # the whole run

    def parts(self) -> dict[str, Any]:
        own = callable(getattr(self.loop, "state", None)) and callable(getattr(self.loop, "load", None))
        return {"own": OwnState(self.loop)} if own else self._loop_parts()

    def _loop_parts(self) -> dict[str, Any]:
        return super().parts() | {"attributes": PlainAttributes(self.loop)}


def ones(run: LoopTrainer, value: float = 1.0) -> dict[str, Array]:
    """A gradient for every parameter, all entries of which are `value`."""
    return {name: np.full_like(array, value) for name, array in run.parameters().items()}


Make = Callable[[Model, Recipe], LoopTrainer]
LoopAttempt = Callable[[Make], bool]
_RECIPE = Recipe(SGD(0.5))


def _equal(first: Mapping[str, Array], second: Mapping[str, Array]) -> bool:
    return all(np.array_equal(value, second[name]) for name, value in first.items())


def _casts(precision: Precision, make: Make) -> bool:
    run, seen = make(exact_linear(), _RECIPE.replace(precision=precision)), list[torch.dtype]()
    run.network.heads["output"].register_forward_hook(lambda *args: seen.append(args[-1].dtype))
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
    """Returns whether a window of this many micro-batches, of four in a full one, moves the parameters."""
    run = make(exact_linear(), _RECIPE.replace(accumulation=4))
    before = run.parameters()
    for batch in exact_batch(8).into(4)[:micro_batches]:
        run.accumulate(batch, 2 * micro_batches)
    run.apply()
    return not _equal(before, run.parameters())


def _feeds(make: Make) -> bool:
    run = make(exact_linear(), _RECIPE)
    before = run.parameters()
    run.apply_gradients(ones(run))
    return not _equal(before, run.parameters())


def _feeds_one(make: Make) -> bool:
    run = make(exact_linear(), _RECIPE)
    before = run.parameters()
    name, value = next(iter(ones(run).items()))
    run.apply_gradients({name: value})
    after = run.parameters()
    return not np.array_equal(before.pop(name), after[name]) and _equal(before, after)


def _clips(make: Make) -> bool:
    after = []
    for clip in (None, 2.0**-8):
        run = make(exact_linear(), _RECIPE.replace(clip=clip))
        run.apply_gradients(ones(run))
        after.append(run.parameters())
    return not _equal(*after)


def _schedules(make: Make) -> bool:
    run = make(exact_linear(), _RECIPE.replace(schedule=Steps((1,), (1.0, 0.5))))
    run.apply_gradients(ones(run))
    return run.steppers[0].learning_rate != 0.5


CYCLE = OneCycle(4.0, 3, 10, 0.25, momenta=(0.75, 0.25))


def moves_momentum(make: Make) -> bool:
    """Returns whether a loop also follows the momenta of a schedule."""
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
    return _equal(run.parameters(), other.parameters())


def _shows_the_pass(make: Make) -> bool:
    """Returns whether the gradient of the head's outputs, summed over samples, equals that of its bias."""
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
"""By capability: the part of a recipe that a loop ignores if the attempt has no effect, and that attempt."""


class TrainingLoop(Protocol):
    """A training loop in PyTorch. Its class is called without arguments."""

    def setup(self, network: torch.nn.Module, recipe: LoopRecipe) -> None:
        """Makes optimizer, scaler and scheduler of the network's parameters, as attributes of self.

        `network(inputs, targets)` gives the loss of each item, (items,), as `reduction="none"` does: of each sample, or
        of each token inside the mask. `network(inputs)` gives the outputs by head.
        """

    def micro_batch(self, inputs: torch.Tensor, targets: Mapping[str, torch.Tensor], items: int) -> None:
        """Runs forward and backward of a micro-batch of a window of `items` items in all."""

    def step(self) -> float | torch.Tensor | None:
        """Ends the window, with an update or without; returns the norm of the unscaled gradients if it clips."""


class LoopFramework(TorchProcess):
    """PyTorch as a user's loop trains with it. Each loop has a subclass with the name of the loop's class."""

    modes = ("loop",)
    has_workarounds = False
    make: Callable[[], Any]

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        """Trains one window.

        Raises:
            UnknownFramework: a method of the loop raises an exception.
        """
        super().__init__(device, mode)
        try:
            self._run(exact_linear(), Recipe()).update((exact_batch(4),))
        except Exception as error:
            kind = f"{type(self).__module__}:{type(self).__qualname__}"
            raise UnknownFramework(
                f"loop {kind} cannot train: {type(error).__name__}: {error}; see docs/own-loop.md"
            ) from error

    def supported_capabilities(self) -> Collection[Capability]:
        return (Capability.FLOAT64_HEADS,)

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {key: partial(_without_warnings, attempt, self._run) for key, (_, attempt) in ATTEMPTS.items()}

    def refusals(self) -> Mapping[Capability, str]:
        return self._ignored

    @cached_property
    def _ignored(self) -> dict[Capability, str]:
        """The parts of a recipe that the loop ignores, by one attempt each; the tests report an attempt that raises."""
        ignored = {}
        for capability, (what, attempt) in ATTEMPTS.items():
            try:
                acts = _without_warnings(attempt, self._run)
            except Exception:  # the test of this capability reports it
                continue
            if not acts:
                ignored[capability] = f"the loop ignores {what}" if what else _RESCALED
        return ignored

    def require_recipe(self, recipe: Recipe) -> None:
        super().require_recipe(recipe)
        if isinstance(recipe.schedule, OneCycle) and recipe.schedule.momenta is not None:
            attempt = partial(_without_warnings, moves_momentum, self._run)
            raise Unsupported(Capability.SCHEDULE, "recipe.schedule has the rate's factor, and no momentum", attempt)

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> LoopTrainer:
        self.require_recipe(recipe)
        return self.bind(self._run(model, recipe, weights))

    def _run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> LoopTrainer:
        return LoopTrainer(type(self).make, model, recipe, weights, self.device)

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        raise self.refusal(Capability.OPERATIONS)


def _without_warnings(attempt: LoopAttempt, run: Make) -> bool:
    """The result of an attempt, without the loop's warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return attempt(run)


def framework_of(kind: type) -> type[LoopFramework]:
    """The framework of a loop's class, under the name of that class."""
    names = {"make": staticmethod(kind), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (LoopFramework,), names)
