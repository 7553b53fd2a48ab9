"""What both modes of Lightning share: precisions, attempts, small modules, and what Lightning makes of requests."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from fixtures.arrays import Array
from fixtures.recipe import FormatName, Recipe
from frameworks.contract import Attempt, Capability, DataRun, FormatRequest, RowOrder
from frameworks.torch.core.devices import dtype_name, to_array, to_tensor
from frameworks.torch.core.settings import Probe, all_guarded
from frameworks.torch.stacks.framework import EPOCHS, STEPS, Dropping, collect_warnings, loader

NAMES: Mapping[str, Any] = {
    "O0": "32-true",
    "O1-float16": "16-mixed",
    "O1-bfloat16": "bf16-mixed",
    "O3-float16": "16-true",
    "O3-bfloat16": "bf16-true",
}
"""Lightning's precisions by label."""

BARE: Mapping[str, Any] = {
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
"""Arguments of a Trainer without logger, progress bar, summary, and checkpoints in the working folder."""

_SMALL = (
    r".*`srun` command is available",
    r".*LeafSpec",
    r".*callbacks used to create",
    r".*does not have many workers",
    r".*log_every_n_steps",
    r".*on purpose",
)
"""What Lightning warns of in a small loop or next to Slurm, and what a newer PyTorch warns of in Lightning's code."""

Train = Callable[..., tuple[torch.Tensor, list[torch.dtype]]]
"""`train(device, *factors, **given)` makes an update of two weights of 1.0 under SGD of rate 0.5 by each factor, with
these arguments of Lightning, and returns the weights and the formats of their products with a matrix."""


@cache
def quiet() -> None:
    """Turns off information on devices and on runs, in the way of Lightning's guide to its console logging."""
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

    A scaler is handed to a plugin, because on a CPU Lightning makes none.

    Args:
        mixed: the class of plugins of mixed precision.
        scaled_float32: one without autocast.
    """
    if recipe.precision.level == "O0" and scaler is not None:
        return {"plugins": scaled_float32("16-mixed", device, scaler)}
    if recipe.precision.label == "O1-float16":
        own_scaler = torch.amp.GradScaler(device, enabled=False) if scaler is None else scaler
        return {"plugins": mixed("16-mixed", device, own_scaler)}
    return {"precision": NAMES[recipe.precision.label]}


def make_scaled_plugin(mixed: Any, device: str, **options: Any) -> Any:
    """A plugin of float16 autocast under a scaler with these arguments, of scale 8 if they name none."""
    return mixed("16-mixed", device, torch.amp.GradScaler(device, **{"init_scale": 8.0} | options))


def is_at(weight: torch.Tensor, value: float) -> bool:
    """Whether all weights have this value."""
    return bool((weight == value).all())


def attempts(device: str, train: Train, mixed: Any, own: Mapping[Capability, Probe]) -> dict[Capability, Attempt]:
    """Attempts by capability, those of precision and scaling and a mode's own.

    Args:
        mixed: the class of plugins of mixed precision.
    """
    shared = {
        Capability.O1_FLOAT16: partial(_has_mixed_precision, train, mixed, torch.float16),
        Capability.O1_BFLOAT16: partial(_has_mixed_precision, train, mixed, torch.bfloat16),
        Capability.O3_FLOAT16: partial(_true, train, torch.float16),
        Capability.O3_BFLOAT16: partial(_true, train, torch.bfloat16),
        Capability.DYNAMIC_SCALING: partial(_dynamic_scaling, train, mixed),
        Capability.STATIC_SCALING: partial(_static_scaling, train, mixed),
    }
    return all_guarded({**shared, **own}, device, partial(torch.random.fork_rng, []), without_warnings)


def _has_mixed_precision(train: Train, mixed: Any, dtype: torch.dtype, device: str) -> bool:
    options = {"plugins": make_scaled_plugin(mixed, device)} if dtype == torch.float16 else {"precision": "bf16-mixed"}
    weight, formats = train(device, 1.0, **options)
    return formats == [dtype] and weight.dtype == torch.float32


def _true(train: Train, dtype: torch.dtype, device: str) -> bool:
    weight, _ = train(device, 1.0, precision="16-true" if dtype == torch.float16 else "bf16-true")
    return weight.dtype == dtype and is_at(weight, 0.5)


def _dynamic_scaling(train: Train, mixed: Any, device: str) -> bool:
    plugin = make_scaled_plugin(mixed, device)
    weight, _ = train(device, float("inf"), 1.0, plugins=plugin)
    return is_at(weight, 0.5) and plugin.scaler.get_scale() == 4.0


def _static_scaling(train: Train, mixed: Any, device: str) -> bool:
    """Whether an overflow leaves a scale that is never to grow as it was."""
    plugin = make_scaled_plugin(mixed, device, growth_interval=2**31 - 1)
    train(device, float("inf"), plugins=plugin)
    return bool(plugin.scaler.get_scale() == 8.0)


Step = Callable[["Tiny", float], Any]


def _sgd(module: Tiny) -> torch.optim.Optimizer:
    return torch.optim.SGD([module.weight], 0.5)


def mean(module: Tiny, factor: float) -> torch.Tensor:
    return (module.weight * factor).sum()


class Tiny(LightningModule):
    """Two weights of 1.0 under SGD of rate 0.5; a batch is a factor of their sum.

    Attributes:
        readings: whatever a step records.
    """

    def __init__(self, step: Step = mean, configured: Callable[[Tiny], Any] = _sgd) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.readings: list[Any] = []
        self._step = step
        self._configured = configured

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        return self._step(self, float(batch))

    def configure_optimizers(self) -> Any:
        return self._configured(self)


def fit_module(device: str, module: Tiny, *factors: float, epochs: int = 1, **options: Any) -> Trainer:
    """A Trainer that has trained the module on these batches, each epoch."""
    quiet()
    with without_warnings():
        trainer = Trainer(accelerator=device, max_epochs=epochs, **BARE, **options)
        trainer.fit(module, DataLoader(torch.tensor(factors), batch_size=None))
    return trainer


_ASKED: dict[FormatName, Any] = {"float16": "16-mixed", "bfloat16": "bf16-mixed"}
_REPORTED = {"16-mixed": "float16", "bf16-mixed": "bfloat16", "32-true": "float32"}


class _Rows(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Dropping()

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.model(**batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 2.0**-8)


def resumed_epoch(order: RowOrder, windows: int, device: str) -> tuple[DataRun, DataRun]:
    """The unbroken run, which writes checkpoints, and one that is resumed from one of them."""
    quiet()
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for resumed in (False, True):
            saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=windows, save_top_k=-1)
            with torch.random.fork_rng():
                module = _Rows()
                trainer = Trainer(
                    accelerator=device,
                    max_epochs=EPOCHS,
                    accumulate_grad_batches=STEPS,
                    callbacks=[] if resumed else [saving],
                    **{**BARE, "enable_checkpointing": not resumed},
                )
                trainer.fit(module, loader(order), ckpt_path=f"{folder}/step={windows}.ckpt" if resumed else None)
                runs.append(module.model.since(0 if resumed else windows * STEPS))
    return runs[0], runs[1]


def trainer_requested(format_name: FormatName, device: str) -> FormatRequest:
    """What the Trainer makes of a request for mixed precision, without this adapter's plugin."""
    formats: list[torch.dtype] = []

    def product(module: Tiny, factor: float) -> torch.Tensor:
        y = torch.full((2, 2), factor, device=module.device) @ module.weight
        formats.append(y.dtype)
        return y.sum()

    with collect_warnings() as warned:
        trainer = fit_module(device, Tiny(product), 1.0, precision=_ASKED[format_name])
    return _request(formats[0], trainer.precision, warned)


def fabric_requested(format_name: FormatName, device: str) -> FormatRequest:
    """What Fabric makes of a request for mixed precision, without this adapter's plugin."""
    formats: list[torch.dtype] = []
    layer = torch.nn.Linear(2, 2)
    layer.register_forward_hook(lambda _layer, _inputs, output: formats.append(output.dtype))
    with collect_warnings() as warned:
        fabric = Fabric(accelerator=device, devices=1, precision=_ASKED[format_name])
        fabric.setup_module(layer)(torch.ones(2, 2, device=device))
    return _request(formats[0], fabric.strategy.precision.precision, warned)


def _request(ran: torch.dtype, reported: str, warned: list[str]) -> FormatRequest:
    says_so = any("mixed" in text or "AMP" in text for text in warned)
    return FormatRequest(dtype_name(ran), _REPORTED[reported], warned=says_so)


class _Scheduled(Tiny):
    """Counts the schedule's steps after each update."""

    def __init__(self, frequency: int) -> None:
        super().__init__()
        self._frequency = frequency
        self.stepped: list[bool] = []

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 2.0**-8)
        optimizer.register_step_post_hook(lambda *_: self.stepped.append(True))
        self.schedule = LambdaLR(optimizer, lambda _: 1.0)
        config = {"scheduler": self.schedule, "interval": "step", "frequency": self._frequency}
        return {"optimizer": optimizer, "lr_scheduler": config}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if len(self.stepped) > len(self.readings):
            self.readings.append(self.schedule.last_epoch)


class _Hooked(Tiny):
    """Records the gradient in `on_before_optimizer_step`."""

    def __init__(self, gradient: torch.Tensor, fused: bool) -> None:
        super().__init__(lambda module, _: (module.weight * gradient).sum())
        self.weight = torch.nn.Parameter(torch.ones_like(gradient))
        self._fused = fused

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([self.weight], 0.5, fused=self._fused)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        assert self.weight.grad is not None
        self.readings.append(self.weight.grad.clone())


def count_schedule_steps(device: str, *, frequency: int, accumulation: int, epochs: Sequence[int]) -> tuple[int, ...]:
    """The steps of a schedule after each update, of epochs that are as long as the first one.

    Raises:
        ValueError: the epochs differ in length.
    """
    if len(set(epochs)) != 1:
        raise ValueError(f"epochs: got {list(epochs)}, want the same length for all")
    module = _Scheduled(frequency)
    fit_module(device, module, *[1.0] * epochs[0], epochs=len(epochs), accumulate_grad_batches=accumulation)
    return tuple(module.readings)


def gradient_in_hook(device: str, gradient: Array, *, scale: float, fused: bool) -> Array:
    """The gradient in `on_before_optimizer_step`, of weights with this unscaled one."""
    module = _Hooked(to_tensor(gradient, device), fused)
    fit_module(device, module, 1.0, plugins=make_scaled_plugin(MixedPrecision, device, init_scale=scale))
    return to_array(module.readings[0])


class _ByHand(Tiny):
    """Steps by hand with a clipped gradient, by the calls of Lightning's guide to manual optimization."""

    def __init__(self, gradient: torch.Tensor, limit: float) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros_like(gradient))
        self._gradient = gradient
        self._limit = limit

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([self.weight], 1.0)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward((self.weight * self._gradient).sum())
        self.clip_gradients(optimizer, gradient_clip_val=self._limit, gradient_clip_algorithm="norm")
        optimizer.step()


def clip_in_manual_step(device: str, gradient: Array, *, limit: float, scale: float) -> Array:
    """The gradient that a step of manual optimization applies after `clip_gradients`."""
    module = _ByHand(to_tensor(gradient, device), limit)
    fit_module(device, module, 1.0, plugins=make_scaled_plugin(MixedPrecision, device, init_scale=scale))
    return to_array(-module.weight)
