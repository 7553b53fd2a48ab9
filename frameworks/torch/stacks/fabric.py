"""Lightning Fabric as a framework of the suite: runs in its documented loop, attempts, and code shared with Trainer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision, Precision

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import DynamicScaling, FormatName, Recipe
from frameworks.base import NO_AVERAGE, same_parts
from frameworks.contract import Attempt, Capability, FormatRequest, Unsupported
from frameworks.torch.core.layers import item_loss_sums
from frameworks.torch.core.settings import dtype_name
from frameworks.torch.probes import Probe, all_guarded
from frameworks.torch.stacks.framework import StackFramework, collect_warnings
from frameworks.torch.training.optimizers import scaler_settings
from frameworks.torch.training.trainer import LOOP, TorchTrainer

NAMES: Mapping[str, Any] = {
    "O0": "32-true",
    "O1-float16": "16-mixed",
    "O1-bfloat16": "bf16-mixed",
    "O3-float16": "16-true",
    "O3-bfloat16": "bf16-true",
}
"""Lightning's precisions by label."""

_SMALL = (
    r".*`srun` command is available",
    r".*LeafSpec",
    r".*callbacks used to create",
    r".*does not have many workers",
    r".*log_every_n_steps",
    r".*on purpose",
)
"""Patterns of ignored warnings: Lightning's on small loops and Slurm, and a newer PyTorch's on Lightning's code."""
ASKED: dict[FormatName, Any] = {"float16": "16-mixed", "bfloat16": "bf16-mixed"}
_REPORTED = {"16-mixed": "float16", "bf16-mixed": "bfloat16", "32-true": "float32"}

FILE = "run.ckpt"

_SAFELY = {"weights_only": True} if "weights_only" in signature(Fabric.load).parameters else {}
"""Arguments that restrict Fabric's loading to tensors and plain values; Lightning before 2.6 has none."""

NO_STATIC_SCALE = "Lightning calls GradScaler.update() without a scale, so an overflow always changes it"
_NORM_OF_ONE = "clip_gradients takes the norm over the parameters of one optimizer"
NO_WIDE_HEADS = "Lightning casts the whole model, or all of its outputs, to one format"
NO_LOW_SCALING = "Lightning scales losses in its 16-mixed alone"
NO_FUSED_CLIPPING = "Lightning refuses to clip the scaled gradients of a fused optimizer, which unscales them itself"


@cache
def quiet() -> None:
    """Turns off log messages on devices and runs, as in Lightning's guide to console logging."""
    for name in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Ignores warnings that a small loop gives."""
    with warnings.catch_warnings():
        for message in _SMALL:
            warnings.filterwarnings("ignore", message=message)
        yield


def precision_of(
    recipe: Recipe, device: str, scaler: torch.amp.GradScaler | None, mixed: Any, scaled_float32: Any
) -> dict[str, Any]:
    """The argument of Lightning that chooses a recipe's precision.

    A plugin gets the scaler, because Lightning makes none on a CPU.

    Args:
        mixed: class of the plugin of mixed precision.
        scaled_float32: class of the plugin of loss scaling without autocast.
    """
    if recipe.precision.level == "O0" and scaler is not None:
        return {"plugins": scaled_float32("16-mixed", device, scaler)}
    if recipe.precision.label == "O1-float16":
        own_scaler = torch.amp.GradScaler(device, enabled=False) if scaler is None else scaler
        return {"plugins": mixed("16-mixed", device, own_scaler)}
    return {"precision": NAMES[recipe.precision.label]}


def make_scaled_plugin(mixed: Any, device: str, **options: Any) -> Any:
    """A plugin of float16 autocast with a scaler of these arguments; the default scale is 8."""
    return mixed("16-mixed", device, torch.amp.GradScaler(device, **{"init_scale": 8.0} | options))


def guard_attempts(probes: Mapping[Capability, Probe], device: str) -> dict[Capability, Attempt]:
    """Attempts by capability that use no random stream of a run and give no warnings."""
    return all_guarded(probes, device, partial(torch.random.fork_rng, []), without_warnings)


def format_request(ran: torch.dtype, reported: str, warned: list[str]) -> FormatRequest:
    """The effect of a request for mixed precision in Lightning."""
    says_so = any("mixed" in text or "AMP" in text for text in warned)
    return FormatRequest(dtype_name(ran), _REPORTED[reported], warned=says_so)


class Weight(torch.nn.Module):
    """Two weights of 1.0; the output is a product with a matrix."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.weight.dtype) @ self.weight


class Loop:
    """The objects of the loop in Fabric's documentation, with weights under SGD of rate 0.5."""

    def __init__(
        self, device: str, dtype: torch.dtype = torch.float32, fused: bool | None = None, **options: Any
    ) -> None:
        quiet()
        self.fabric = Fabric(accelerator=device, devices=1, **options)
        self.weight = Weight(dtype)
        optimizer = torch.optim.SGD(self.weight.parameters(), 0.5, fused=fused)
        self.module, self.optimizer = self.fabric.setup(self.weight, optimizer)

    def backward(self, factor: float) -> None:
        """Runs forward and backward of a micro-batch; its loss is a factor times the sum of the weights."""
        inputs = torch.eye(2, device=self.fabric.device) * factor
        self.fabric.backward(self.module(inputs).sum())


def keeps_scale(device: str) -> bool:
    """Returns whether a constant scale stays the same after an overflow."""
    plugin = make_scaled_plugin(MixedPrecision, device, growth_interval=2**31 - 1)
    loop = Loop(device, plugins=plugin)
    loop.backward(float("inf"))
    loop.optimizer.step()
    return bool(plugin.scaler.get_scale() == 8.0)


def clips_two_optimizers(device: str) -> bool:
    """Returns whether clipping of each of two optimizers keeps their joint norm within the limit."""
    fabric, model = Fabric(accelerator=device, devices=1), torch.nn.Linear(1, 1)
    unwrapped = [torch.optim.SGD([parameter], 0.5) for parameter in model.parameters()]
    module, *optimizers = fabric.setup(model, *unwrapped)
    fabric.backward(module(torch.full((1, 1), 8.0, device=fabric.device)).sum() * 8.0)
    for optimizer in optimizers:
        fabric.clip_gradients(module, optimizer, max_norm=1.0)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return float(torch.cat([gradient.flatten() for gradient in gradients]).norm()) < 1.001


def clips_fused(device: str) -> bool:
    """Returns whether the scaled gradients of a fused optimizer are clipped."""
    loop = Loop(device, fused=True, plugins=make_scaled_plugin(MixedPrecision, device))
    loop.backward(8.0)
    loop.fabric.clip_gradients(loop.module, loop.optimizer, max_norm=1.0)
    loop.optimizer.step()
    return bool(((loop.weight.weight > 0.5) & (loop.weight.weight < 1.0)).all())


def keeps_float64(label: str, device: str) -> bool:
    """Returns whether a model with float64 weights returns float64 outputs at a level."""
    low = label == "O1-float16"
    options = {"plugins": make_scaled_plugin(MixedPrecision, device)} if low else {"precision": NAMES[label]}
    loop = Loop(device, torch.float64, **options)
    return bool(loop.module(torch.eye(2, device=device)).dtype == torch.float64)


def scales(precision: str, device: str) -> bool:
    """Returns whether Fabric's bf16-mixed takes a loss scaler, or another precision of it makes one."""
    if precision == "bf16-mixed":
        MixedPrecision(precision, device, torch.amp.GradScaler(device))
        return True
    return getattr(Loop(device, precision=precision).fabric.strategy.precision, "scaler", None) is not None


class Float32Scaled(MixedPrecision):
    """Loss scaling without autocast; Fabric's own precisions scale only under float16 autocast."""

    def forward_context(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def convert_input(self, data: Any) -> Any:
        return data

    def convert_output(self, data: Any) -> Any:
        return data


class FabricTrainer(TorchTrainer):
    """A run whose model, optimizers, backward passes, clipping, steps and checkpoints are Fabric's.

    Attributes:
        fabric: the Fabric object of this run.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        quiet()
        precision = precision_of(self.recipe, self.device, self.scaler, MixedPrecision, Float32Scaled)
        self.fabric = Fabric(accelerator=self.device, devices=1, **precision)
        self._module, *self._optimizers = self.fabric.setup(
            self.network, *(stepper.optimizer for stepper in self.steppers)
        )
        self._outputs = self._module
        self._average_module = None if self.average is None else self.fabric.setup_module(self.average)
        self._settings = scaler_settings(self.scaler)

    @property
    def _plugin(self) -> Precision:
        return self.fabric.strategy.precision

    def _low_format(self) -> torch.dtype | None:
        return None

    def autocast(self) -> AbstractContextManager[None]:
        return self.fabric.autocast() if self.recipe.precision.level == "O1" else nullcontext()

    def _eager_losses(self, inputs: torch.Tensor, targets: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        return item_loss_sums(self.model.losses, self._module(inputs), targets)

    def _run_backward(self, losses: list[torch.Tensor], scaler: torch.amp.GradScaler | None, *, retain: bool) -> None:
        if scaler is not self.scaler and scaler is not None:
            scaler.scale(losses[0].detach())  # `unscale_` of the copy in `gradients` needs an earlier `scale`
        self.fabric.backward(losses[0], retain_graph=retain)

    def _micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        return self.fabric.no_backward_sync(self._module, enabled=not last)

    def _unscale_calls(self) -> int:
        return 0

    def _unscale(self) -> None:
        for stepper in self.steppers:
            self._plugin.unscale_gradients(stepper.optimizer)

    def _clip(self, limit: float) -> torch.Tensor:
        norms = [
            self.fabric.clip_gradients(self._module, optimizer, max_norm=limit, error_if_nonfinite=False)
            for optimizer in self._optimizers
        ]
        return torch.stack([norm for norm in norms if norm is not None]).norm()

    def _step(self) -> None:
        for optimizer in self._optimizers:
            optimizer.step()

    def _zero_gradients(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        if self._average_module is None:
            raise ValueError(NO_AVERAGE)
        self._average_module.eval()
        return self._evaluate(self._average_module, inputs)

    # the whole run

    def _checkpoint(self) -> dict[str, Any]:
        """The user's dictionary of parts; includes the precision plugin with the loss scale, which Fabric omits."""
        parts = self.parts() | {"model": self._module}
        if "scaler" in parts:
            parts["scaler"] = self._plugin
        return parts | self._loop_entry()

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.fabric.save(path / FILE, self._checkpoint())

    def restore(self, path: Path) -> None:
        file, state = path / FILE, self._checkpoint()
        try:
            same_parts(file, self.fabric.load(file, **_SAFELY), state)
            self.fabric.load(file, state, **_SAFELY)
            self.restore_loop_state(state[LOOP])
            self.put_gradients(state[LOOP]["gradients"])
        except Exception as error:
            raise ValueError(f"{file} cannot be loaded: {error}") from error


def require_together(
    model: Model, recipe: Recipe, keeps: Callable[[str, str], bool], scales: Callable[[str, str], bool], device: str
) -> None:
    """Refuses a combination whose parts Lightning supports only separately.

    Args:
        keeps: float64 heads keep their format at the level with this label.
        scales: a precision of Lightning has a loss scaler.

    Raises:
        Unsupported: float64 heads in a model of a low format, or a scaler without float16 autocast.
    """
    label = recipe.precision.label
    has_wide_heads = any(head.format == "float64" for head in model.heads.heads)
    if has_wide_heads and label != "O0" and not keeps(label, device):
        raise Unsupported(Capability.FLOAT64_HEADS, NO_WIDE_HEADS, partial(keeps, label, device))
    if isinstance(recipe.scaling, DynamicScaling) and recipe.scaling.enabled and label not in ("O0", "O1-float16"):
        raise Unsupported(Capability.DYNAMIC_SCALING, NO_LOW_SCALING, partial(scales, NAMES[label], device))


def clips_fused_and_scaled(recipe: Recipe) -> bool:
    """Returns whether a recipe clips gradients that a fused optimizer unscales."""
    scaled = recipe.scaling is not None or recipe.precision.label == "O1-float16"
    return recipe.clip is not None and recipe.implementation == "fused" and scaled


class FabricFramework(StackFramework):
    """Lightning Fabric: the user's own loop with Fabric's calls in it."""

    of_library = frozenset({Capability.LIBRARY_REQUESTS})

    def library_refusals(self) -> Mapping[Capability, str]:
        return {Capability.STATIC_SCALING: NO_STATIC_SCALE}

    def library_attempts(self) -> Mapping[Capability, Attempt]:
        return guard_attempts({Capability.STATIC_SCALING: keeps_scale}, self.device)

    def request_format(self, format_name: FormatName) -> FormatRequest:
        """The effect of a request for mixed precision in Fabric, without this adapter's plugin."""
        formats: list[torch.dtype] = []
        layer = torch.nn.Linear(2, 2)
        layer.register_forward_hook(lambda _layer, _inputs, output: formats.append(output.dtype))
        with collect_warnings() as warned:
            fabric = Fabric(accelerator=self.device, devices=1, precision=ASKED[format_name])
            fabric.setup_module(layer)(torch.ones(2, 2, device=self.device))
        return format_request(formats[0], fabric.strategy.precision.precision, warned)

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> FabricTrainer:
        require_together(model, recipe, keeps_float64, scales, self.device)
        if recipe.clip is not None and recipe.optimizers > 1:
            raise Unsupported(Capability.CLIP, _NORM_OF_ONE, partial(clips_two_optimizers, self.device))
        if clips_fused_and_scaled(recipe):
            raise Unsupported(Capability.CLIP, NO_FUSED_CLIPPING, partial(clips_fused, self.device))
        return FabricTrainer(model, recipe, weights, self.device, self.mode)
