"""Recipes' optimizers, schedules and loss scalers in PyTorch, 8-bit Adam of bitsandbytes, refusals and attempts."""

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.optimizers import SGD, Adafactor, Adagrad, Adam, AdamW, Muon, Optimizer, RMSprop, collect_fields
from fixtures.recipe import DynamicScaling, Implementation, Precision, Recipe, StaticScaling
from frameworks.base import optimizer_attempts
from frameworks.base.capability_attempts import Make
from frameworks.contract import Attempt, Capability, EightBitRule, Unsupported, needs
from frameworks.torch.core import ways
from frameworks.torch.core.layers import Slot
from frameworks.torch.core.settings import dtype_name, to_array

ScalerClass = type[torch.amp.GradScaler]

CHOICES: dict[Capability, Implementation] = {
    Capability.SINGLE: "single",
    Capability.FOREACH: "foreach",
    Capability.FUSED: "fused",
    Capability.CAPTURABLE: "capturable",
}
NOT_CAPTURABLE = "on a CPU optimizers raise AssertionError for capturable=True, which is for CUDA graphs"
_LACKING: dict[Implementation, tuple[type, ...]] = {
    "foreach": (Muon,),
    "fused": (RMSprop, Adafactor, Muon),
    "capturable": (SGD, Adagrad, Adafactor, Muon),
}
_NEWER: Mapping[type[Optimizer], tuple[Capability, ...]] = {
    Adafactor: (Capability.ADAFACTOR,),
    Muon: (Capability.MUON, Capability.WIDTH_RATE),
}
"""Optimizers that older versions of PyTorch lack, each with its capabilities."""
_OPTIONS = {
    Capability.ABSOLUTE_RATE: "torch.optim.Adafactor takes at most 1/√t as the rate of update t, whatever lr is",
    Capability.SMALLEST_FACTORED: "torch.optim.Adafactor factors every parameter of two dimensions or more",
    Capability.UNADJUSTED_RATE: "torch.optim.Muon adjusts its rate in one of two ways, and has no third",
}
REFUSED_OPTIONS = _OPTIONS | {
    capability: f"this version of PyTorch has no torch.optim.{kind.__name__}"
    for kind, capabilities in _NEWER.items()
    for capability in capabilities
    if not hasattr(torch.optim, kind.__name__)
}
_MATRICES = "torch.optim.Muon takes matrices alone, and raises ValueError for other parameters"
_FUSED_FLOAT16 = (
    "GradScaler.unscale_ refuses a float16 model's float16 gradients, which only a fused optimizer unscales itself"
)
_HAS_GRADIENT_FORMATS = hasattr(torch.Tensor, "grad_dtype")
"""True if the format of a parameter's gradient can be set."""
_NO_OTHERS = "Adam takes no others" if _HAS_GRADIENT_FORMATS else "this version of PyTorch gives it no others"
NO_UNSCALING = f"GradScaler.unscale_ refuses a float16 model's float16 gradients, and {_NO_OTHERS}"
NO_CLIPPING = (
    "clipping wants unscaled gradients; GradScaler.unscale_ refuses a float16 model's float16 ones, and " + _NO_OTHERS
)
"""Reasons: an optimizer that unscales gradients itself takes none that were unscaled by hand, or clipped."""
_TENSOR_RATE = "foreach Adam and AdamW raise ValueError for a tensor as rate, unless they are capturable"

_KINDS: Mapping[type[Optimizer], type[torch.optim.Optimizer]] = {
    SGD: torch.optim.SGD,
    Adam: torch.optim.Adam,
    AdamW: torch.optim.AdamW,
    Adagrad: torch.optim.Adagrad,
    RMSprop: torch.optim.RMSprop,
    **{kind: getattr(torch.optim, kind.__name__) for kind in _NEWER if hasattr(torch.optim, kind.__name__)},
}
OPTIMIZERS = Capability.of_optimizers(_KINDS)
"""The capabilities of PyTorch's optimizers, without their options."""
_ARGUMENTS = {
    "learning_rate": "lr",
    "epsilon": "eps",
    "initial": "initial_accumulator_value",
    "rate_decay": "lr_decay",
    "decay": "alpha",
    "centred": "centered",
    "threshold": "d",
    "steps": "ns_steps",
    "coefficients": "ns_coefficients",
}
"""PyTorch's names of arguments, where they differ from a recipe's."""
_ADJUSTMENTS = {"rms": "match_rms_adamw", "width": "original"}
_OF_8_BIT_MOMENTS = ("state_bits", "block", "smallest")
IMPLEMENTATIONS: Mapping[Implementation, Mapping[str, bool]] = {
    "default": {},
    "single": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
}
"""Arguments that choose an implementation. An option that an optimizer lacks need not be switched off."""

NOT_INSTALLED = "bitsandbytes is not installed"
BLOCK = 256
"""Block size of bitsandbytes' optimizers, in entries."""
SLOTS = ("state1", "state2")
"""Bitsandbytes' names of the moments; its other names end with the same numbers."""
_WRAPPED = "__bnb_optimizer_quant_state__"
_ONE_BLOCK = f"bitsandbytes' optimizers have blocks of {BLOCK} entries, and no argument for them"
_FLOAT16 = (
    "GradScaler.unscale_ refuses a float16 model's float16 gradients, and bitsandbytes' optimizers do not say that "
    "they unscale them by themselves"
)


def implementation_attempts(device: str, run: Make) -> dict[Capability, Attempt]:
    """Attempts for each option that some version lacks, and for each implementation."""
    chosen = {capability: partial(_implements, name, device) for capability, name in CHOICES.items()}
    return optimizer_attempts(run, *_OPTIONS, *chain.from_iterable(_NEWER.values())) | chosen


def require_implementation(model: Model, recipe: Recipe, device: str) -> None:
    """Refuses an implementation that an optimizer lacks, and parameters that it does not take.

    Raises:
        Unsupported: the optimizer lacks the implementation, or a parameter does not fit it.
    """
    if isinstance(recipe.optimizer, Muon) and any(len(shape) != 2 for shape in model.parameter_shapes().values()):
        raise Unsupported(Capability.MUON, _MATRICES, partial(_moves_weight, recipe, device, (2,)))
    for capability, reason in _find_refusals(recipe, device):
        raise Unsupported(capability, reason, partial(_moves_weight, recipe, device))


def _find_refusals(recipe: Recipe, device: str) -> Iterator[tuple[Capability, str]]:
    chosen, kind = recipe.implementation, type(recipe.optimizer)
    if chosen == "default":
        return
    asked = Capability(f"optimizer.{chosen}")
    if kind in _LACKING.get(chosen, ()):
        yield asked, f"torch.optim.{kind.__name__} has no {chosen} implementation"
    if chosen == "fused" and kind is Adagrad and device == "cuda":
        yield asked, "torch.optim.Adagrad has no fused implementation on this device"
    if isinstance(recipe.optimizer, Adam) and recipe.optimizer.state_bits == 8:
        yield asked, "bitsandbytes' optimizers have one implementation"
    if chosen == "foreach" and recipe.tensor_rate and kind in (Adam, AdamW):
        yield Capability.TENSOR_RATE, _TENSOR_RATE
    if chosen != "fused" and wants_fused(recipe):
        yield asked, _FUSED_FLOAT16


def _moves_weight(recipe: Recipe, device: str, shape: tuple[int, ...] = (2, 2)) -> bool:
    """Returns whether an optimizer with the recipe's arguments moves a weight by a scaled gradient."""
    low = torch.float16 if recipe.precision.level == "O3" and recipe.precision.format == "float16" else torch.float32
    weight = torch.ones(shape, dtype=low, device=device, requires_grad=True)
    kind, arguments = optimizer_kind(recipe.replace(scaling=None))
    scaler = torch.amp.GradScaler(device, init_scale=16.0, enabled=recipe.scaling is not None)
    optimizer = kind([weight], **arguments)
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    return bool((weight != 1.0).all())


def _implements(name: Implementation, device: str) -> bool:
    """Returns whether Adam has the implementation among its settings and moves weights."""
    weight = torch.ones(2, device=device, requires_grad=True)
    stepper = Stepper(Recipe(Adam(0.5), implementation=name), [weight])
    weight.sum().backward()
    stepper.optimizer.step()
    settings = stepper.optimizer.param_groups[0]
    return all(settings[key] is on for key, on in IMPLEMENTATIONS[name].items()) and bool((weight < 1.0).all())


def class_of_device(device: str) -> ScalerClass:
    """The device's own class of scalers, such as `torch.cuda.amp.GradScaler`, which is made without a device."""
    own: type[torch.amp.GradScaler] = getattr(torch, device).amp.GradScaler

    class OfDevice(own):
        """The class with the arguments of `torch.amp.GradScaler`."""

        def __init__(self, device: str, **options: Any) -> None:
            super().__init__(**options)

    return OfDevice


def grad_scaler(device: str, recipe: Recipe, kind: ScalerClass = torch.amp.GradScaler) -> torch.amp.GradScaler | None:
    """PyTorch's scaler, with PyTorch's default where the recipe has None. `update` restores a constant scale."""
    match recipe.scaling:
        case None:
            return None
        case StaticScaling(scale=scale):
            return kind(device, init_scale=scale)
        case DynamicScaling() as scaling:
            return kind(device, **dynamic_arguments(scaling))


def dynamic_arguments(scaling: DynamicScaling) -> dict[str, Any]:
    """The arguments of PyTorch's scaler, without those that the recipe leaves None."""
    arguments = {
        "enabled": scaling.enabled,
        "init_scale": scaling.initial,
        "growth_factor": scaling.growth,
        "backoff_factor": scaling.backoff,
        "growth_interval": scaling.interval,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def twin_of(scaler: torch.amp.GradScaler | None, device: str) -> torch.amp.GradScaler | None:
    """A copy of the scaler with its own record of unscaled optimizers."""
    if scaler is None or not scaler.is_enabled():
        return scaler
    twin = type(scaler)(device)
    twin.load_state_dict(scaler.state_dict())
    return twin


def constant_scale(recipe: Recipe) -> float | None:
    """Argument of `GradScaler.update` that keeps the scale; None if it moves."""
    return float(recipe.scaling.scale) if isinstance(recipe.scaling, StaticScaling) else None


def scales_float16(recipe: Recipe, kind: ScalerClass = torch.amp.GradScaler) -> bool:
    """Returns whether the recipe scales the loss of a float16 model, whose gradients `GradScaler.unscale_` refuses.

    A scaler of another kind accepts them.
    """
    if kind is not torch.amp.GradScaler:
        return False
    scaled = isinstance(recipe.scaling, StaticScaling) or (recipe.scaling is not None and recipe.scaling.enabled)
    return scaled and recipe.precision == Precision("O3", "float16")


def wants_float32_gradients(recipe: Recipe, kind: ScalerClass = torch.amp.GradScaler) -> bool:
    """Returns whether a float16 model gets float32 gradients: unfused SGD accepts them, Adam does not."""
    takes = isinstance(recipe.optimizer, SGD) and recipe.implementation != "fused"
    return takes and scales_float16(recipe, kind) and _HAS_GRADIENT_FORMATS


def take_float32_gradients(recipe: Recipe, kind: ScalerClass, parameters: Iterable[torch.Tensor]) -> None:
    """Gives a float16 model's parameters float32 gradients if `wants_float32_gradients`."""
    for parameter in parameters if wants_float32_gradients(recipe, kind) else ():
        if parameter.dtype == torch.float16:
            parameter.grad_dtype = torch.float32


def wants_fused(recipe: Recipe, kind: ScalerClass = torch.amp.GradScaler) -> bool:
    """Returns whether the optimizer is to be a fused one, which unscales a float16 model's gradients by itself."""
    return scales_float16(recipe, kind) and not wants_float32_gradients(recipe, kind)


def scaler_state(scaler: torch.amp.GradScaler | None, device: str) -> dict[str, Array]:
    """Scale and growth counter of an enabled scaler. The scale has the format that it multiplies float16 losses in."""
    good = good_updates(scaler)
    if scaler is None or good is None:
        return {}
    dtype = scaler.scale(torch.ones((), dtype=torch.float16, device=device)).dtype
    return {"scale": np.array(scaler.get_scale(), dtype_name(dtype)), "good_steps": np.array(good, np.int64)}


def good_updates(scaler: torch.amp.GradScaler | None) -> int | None:
    """The scaler's growth counter: updates without an overflow since the scale moved; None if it is not enabled."""
    return None if scaler is None or not scaler.is_enabled() else int(scaler.state_dict()["_growth_tracker"])


def scaler_settings(scaler: torch.amp.GradScaler | None) -> dict[str, float]:
    """The scaler's settings, as reported by PyTorch; empty if it is not enabled."""
    if scaler is None or not scaler.is_enabled():
        return {}
    return {
        "initial": scaler.get_scale(),
        "growth": scaler.get_growth_factor(),
        "backoff": scaler.get_backoff_factor(),
        "interval": float(scaler.get_growth_interval()),
    }


def unscale_gradient(value: Array, scale: float) -> Array:
    """A gradient as a fused optimizer unscales it, in float32 or wider."""
    return np.asarray(value.astype(np.promote_types(value.dtype, np.float32)) / scale)


@cache
def is_installed() -> bool:
    """Returns whether bitsandbytes is installed."""
    return find_spec("bitsandbytes") is not None


def _module(name: str) -> Any:
    """A module of bitsandbytes, whose import makes modules of PyTorch warn of each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(f"bitsandbytes.{name}")


def adam_8bit() -> type[torch.optim.Optimizer]:
    """The class `Adam8bit` of bitsandbytes.

    Raises:
        ImportError: bitsandbytes is not installed, or not for this PyTorch.
    """
    return _module("optim").Adam8bit


def rule() -> EightBitRule:
    """The decoded values of the codes: bitsandbytes' dynamic maps."""
    create_map = _module("functional").create_dynamic_map
    first, second = (to_array(create_map(signed=signed)) for signed in (True, False))
    return EightBitRule(*SLOTS, first, second)


def unwrap_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """An optimizer's state of a parameter, without the nested mapping in which bitsandbytes saves codes."""
    return {**state, **state.get(_WRAPPED, {})} if _WRAPPED in state else state


def has_codes(state: Mapping[str, Any]) -> bool:
    """Returns whether an optimizer holds codes for a parameter."""
    return "qmap1" in state


def moment_arrays(name: str, slot: Slot, state: Mapping[str, Any]) -> dict[str, Array]:
    """A parameter's moments as decoded by bitsandbytes, their codes, and their blocks' absmax."""
    decode = _module("functional").dequantize_blockwise
    result: dict[str, Array] = {}
    for number, moment in enumerate(SLOTS, start=1):
        codes, largest = state[moment], state[f"absmax{number}"]
        decoded = decode(codes, absmax=largest, code=state[f"qmap{number}"], blocksize=BLOCK)
        result[f"{moment}/{name}"] = slot.to_canonical(decoded)
        result[f"codes/{moment}/{name}"] = slot.to_canonical(codes)
        result[f"absmax/{moment}/{name}"] = to_array(largest)
    return result


def require(recipe: Recipe, device: str) -> None:
    """Refuses a recipe for 8-bit Adam that bitsandbytes cannot follow.

    Raises:
        Unsupported: the recipe asks for another block size, or for a scaled loss of a float16 model.
    """
    if Capability.ADAM_8BIT not in needs(recipe):
        return
    block = getattr(recipe.optimizer, "block", BLOCK)
    if block != BLOCK:
        raise Unsupported(Capability.ADAM_8BIT, _ONE_BLOCK, partial(keeps_codes, device, blocksize=block))
    if scales_float16(recipe):
        raise Unsupported(Capability.ADAM_8BIT, _FLOAT16, partial(_moves_weight, recipe, device, (4096,)))


def keeps_codes(device: str, **options: Any) -> bool:
    """Returns whether Adam8bit with these arguments uses 8-bit moments for large parameters."""
    weight = torch.ones(4096, device=device, requires_grad=True)
    optimizer = adam_8bit()([weight], lr=0.5, **options)
    weight.sum().backward()
    optimizer.step()
    codes = {optimizer.state[weight][moment].dtype for moment in SLOTS}
    return codes == {torch.uint8} and bool((weight < 1.0).all())


def _split_in_turn(items: list[torch.Tensor], count: int) -> list[list[torch.Tensor]]:
    return [part for part in (items[start::count] for start in range(count)) if part]


def optimizer_kind(
    recipe: Recipe, scaler: ScalerClass = torch.amp.GradScaler
) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The recipe's optimizer class under a kind of scaler, and its keyword arguments."""
    optimizer, arguments = recipe.optimizer, _arguments(recipe)
    if isinstance(optimizer, Adam) and optimizer.state_bits == 8:
        return adam_8bit(), arguments | {"min_8bit_size": optimizer.smallest}
    optimizer_class = _KINDS[type(optimizer)]
    way = (
        IMPLEMENTATIONS["fused"] if wants_fused(recipe, scaler) else _implementation_arguments(recipe, optimizer_class)
    )
    return optimizer_class, arguments | dict(way)


def _arguments(recipe: Recipe) -> dict[str, Any]:
    """The arguments of an optimizer, by PyTorch's names, without those of 8-bit moments."""
    arguments = {name: value for name, value in collect_fields(recipe.optimizer).items() if value is not None}
    if "beta1" in arguments:
        arguments["betas"] = arguments.pop("beta1"), arguments.pop("beta2")
    match recipe.optimizer:
        case Adafactor(epsilon1=epsilon1, epsilon2=epsilon2):
            arguments = {name: value for name, value in arguments.items() if name not in ("epsilon1", "epsilon2")}
            arguments |= {"beta2_decay": -arguments.pop("decay"), "eps": (epsilon1, epsilon2)}
        case Muon(adjustment=adjustment, weight_decay=decay):
            del arguments["adjustment"]
            arguments |= {"adjust_lr_fn": _ADJUSTMENTS.get(adjustment, adjustment), "weight_decay": decay}
    if recipe.tensor_rate:
        arguments["learning_rate"] = torch.tensor(arguments["learning_rate"])
    return {_ARGUMENTS.get(name, name): value for name, value in arguments.items() if name not in _OF_8_BIT_MOMENTS}


def _implementation_arguments(recipe: Recipe, kind: type[torch.optim.Optimizer]) -> dict[str, bool]:
    """Arguments that choose the recipe's implementation."""
    known = signature(kind).parameters
    return {name: on for name, on in IMPLEMENTATIONS[recipe.implementation].items() if on or name in known}


def _groups_by_decay(parameters: list[torch.Tensor], undecayed: Collection[int]) -> list[dict[str, Any]]:
    """Parameter groups with and without weight decay, from the ids of the tensors without it."""
    with_decay = [parameter for parameter in parameters if id(parameter) not in undecayed]
    without = [parameter for parameter in parameters if id(parameter) in undecayed]
    groups: list[dict[str, Any]] = [{"params": with_decay}, {"params": without, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _options_of_group(recipe: Recipe, index: int) -> dict[str, Any]:
    """Options of a group that differ from the optimizer's."""
    common, own = (
        _arguments(recipe.replace(optimizer=optimizer)) for optimizer in (recipe.optimizer, recipe.of_groups[index])
    )
    return {name: value for name, value in own.items() if name not in common or value != common[name]}


class Stepper:
    """One optimizer with its scheduler, which follows the optimizer's applied updates.

    Attributes:
        applied: how often the optimizer's own `step` has applied gradients, by its post hook. The `step` of a fused
            optimizer also runs on an overflow, which the scaler passes to it, and skips the update.
        hook_calls: how often its post hook has run.
    """

    def __init__(self, recipe: Recipe, parameters: list[torch.Tensor], undecayed: Collection[int] = ()) -> None:
        parts = _split_in_turn(parameters, recipe.groups)
        groups = [
            _options_of_group(recipe, index) | group
            for index, part in enumerate(parts)
            for group in _groups_by_decay(part, undecayed)
        ]
        self.optimizer = self.make_optimizer(recipe, groups)
        self.applied = self.hook_calls = 0
        self.optimizer.register_step_post_hook(self._count)
        self._schedule, self._way = recipe.schedule, recipe.way("schedule")
        self.make_schedule()

    def make_optimizer(self, recipe: Recipe, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """The recipe's optimizer of these parameter groups."""
        kind, arguments = optimizer_kind(recipe)
        return ways.make_optimizer(recipe.way("optimizer"), kind, groups, arguments)

    def make_schedule(self, last_epoch: int = -1) -> None:
        """Makes the recipe's schedule of the optimizer after update `last_epoch` (from 0), or at its beginning."""
        schedule = self._schedule
        self.scheduler = ways.make_scheduler(self._way, self.optimizer, schedule, last_epoch) if schedule else None

    def _count(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.hook_calls += 1
        overflow = getattr(optimizer, "found_inf", None)
        self.applied += overflow is None or not bool(overflow)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """The optimizer's state of each parameter."""
        return self.optimizer.state

    def steps(self, state: Mapping[torch.Tensor, Mapping[str, Any]]) -> int:
        """Applied updates: the optimizer's own counter where it has one (Adam), else the number of calls of `step`."""
        counters = [float(values["step"]) for values in state.values() if "step" in values]
        return int(max(counters)) if counters else self.applied

    def parts(self) -> dict[str, Any]:
        """The parts with a `state_dict`, by name: the optimizer and, if any, the schedule."""
        result: dict[str, Any] = {"optimizer": self.optimizer}
        return result | ({"schedule": self.scheduler} if self.scheduler else {})


Maker = Callable[[Recipe, list[torch.Tensor], Collection[int]], Stepper]


def steppers(recipe: Recipe, slots: Mapping[str, Slot], make: Maker = Stepper) -> list[Stepper]:
    """The recipe's one or two optimizers over the parameters in model order."""
    parameters = [slot.tensor for slot in slots.values()]
    undecayed = {id(slots[name].tensor) for name in recipe.undecayed}
    return [make(recipe, part, undecayed) for part in _split_in_turn(parameters, recipe.optimizers)]


def optimizer_state(steppers: list[Stepper], slots: Mapping[str, Slot]) -> dict[str, Array]:
    """Each state tensor of the optimizers as "SLOT/PARAMETER", with PyTorch's names of the slots, and the counters.

    The counters of a second optimizer are "steps.1" and "schedule.1".
    """
    result: dict[str, Array] = {}
    for index, stepper in enumerate(steppers):
        suffix = f".{index}" if index else ""
        state = stepper.state()
        for name, slot in slots.items():
            values = unwrap_state(state.get(slot.tensor, {}))
            if has_codes(values):
                result |= moment_arrays(name, slot, values)
                continue
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    result[f"{key}/{name}"] = slot.to_canonical(value)
        result[f"steps{suffix}"] = np.array(stepper.steps(state), np.int64)
        if stepper.scheduler:
            result[f"schedule{suffix}"] = np.array(stepper.scheduler.last_epoch, np.int64)
    return result


def averages_of(slots: Mapping[str, Slot], average: AveragedModel) -> dict[str, Array]:
    """The average of each parameter as "average/PARAMETER", and the number of updates in it."""
    result = {f"average/{name}": slot.to_canonical(slot.tensor) for name, slot in slots.items()}
    return result | {"averaged": to_array(average.n_averaged)}
