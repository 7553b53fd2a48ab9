"""PyTorch's implementations of optimizers: what each has, refusals of the others, and attempts."""

from collections.abc import Iterator
from functools import partial

import torch

from fixtures.model import Model
from fixtures.recipe import SGD, Adafactor, Adagrad, Adam, AdamW, Implementation, Muon, Recipe, RMSprop
from frameworks.base import optimizer_attempts
from frameworks.base.optimizer_attempts import Make
from frameworks.contract import Attempt, Capability, Unsupported
from frameworks.torch.training.optimizers import IMPLEMENTATIONS, Stepper, optimizer_kind, wants_fused

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
_NEWER = {Adafactor: (Capability.ADAFACTOR,), Muon: (Capability.MUON, Capability.WIDTH_RATE)}
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
_TENSOR_RATE = "foreach Adam and AdamW raise ValueError for a tensor as rate, unless they are capturable"


def implementation_attempts(device: str, run: Make) -> dict[Capability, Attempt]:
    """Attempts for each option that some version lacks, and for each implementation."""
    chosen = {capability: partial(_acts, name, device) for capability, name in CHOICES.items()}
    return optimizer_attempts(run, *_OPTIONS, Capability.ADAFACTOR, Capability.MUON, Capability.WIDTH_RATE) | chosen


def require_implementation(model: Model, recipe: Recipe, device: str) -> None:
    """Refuses an implementation that an optimizer lacks, and parameters that it does not take.

    Raises:
        Unsupported: it does.
    """
    if isinstance(recipe.optimizer, Muon) and any(len(shape) != 2 for shape in model.parameter_shapes().values()):
        raise Unsupported(Capability.MUON, _MATRICES, partial(_steps, recipe, device, (2,)))
    for capability, reason in _find_refusals(recipe, device):
        raise Unsupported(capability, reason, partial(_steps, recipe, device))


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


def _steps(recipe: Recipe, device: str, shape: tuple[int, ...] = (2, 2)) -> bool:
    """Whether an optimizer with the recipe's arguments moves a weight by a scaled gradient."""
    low = torch.float16 if recipe.precision.level == "O3" and recipe.precision.format == "float16" else torch.float32
    weight = torch.ones(shape, dtype=low, device=device, requires_grad=True)
    kind, arguments = optimizer_kind(recipe.replace(scaling=None))
    scaler = torch.amp.GradScaler(device, init_scale=16.0, enabled=recipe.scaling is not None)
    optimizer = kind([weight], **arguments)
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    return bool((weight != 1.0).all())


def _acts(name: Implementation, device: str) -> bool:
    """Whether Adam has the implementation among its settings and moves weights."""
    weight = torch.ones(2, device=device, requires_grad=True)
    stepper = Stepper(Recipe(Adam(0.5), implementation=name), [weight])
    weight.sum().backward()
    stepper.optimizer.step()
    settings = stepper.optimizer.param_groups[0]
    return all(settings[key] is on for key, on in IMPLEMENTATIONS[name].items()) and bool((weight < 1.0).all())
