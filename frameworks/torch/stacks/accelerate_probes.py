"""Attempts with accelerate's own calls, and what it lacks."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import GradScalerKwargs

from fixtures.recipe import FormatName
from frameworks.contract import Attempt, Capability, DataRun, FormatRequest, RowOrder
from frameworks.torch.core import devices
from frameworks.torch.core.arrays import dtype_name
from frameworks.torch.core.guards import Probe, all_guarded
from frameworks.torch.stacks.accelerate_run import force_float16
from frameworks.torch.stacks.accelerate_state import first_state
from frameworks.torch.stacks.numbered_rows import EPOCHS, ROWS, STEPS, Dropping, loader
from frameworks.torch.stacks.warned import watched
from frameworks.torch.training.optimizer_probes import weight_of

REFUSED: Mapping[Capability, str] = MappingProxyType(
    {Capability.STATIC_SCALING: "accelerate calls GradScaler.update without a scale, and no setting keeps the scale"}
)


class _Attempt:
    """Two weights of ones, and SGD with a rate of 0.5 that halves, prepared by an accelerator.

    Args:
        precision: "no", "fp16" or "bf16".
        steps: accumulation steps.
        scaler: settings of `GradScalerKwargs`.
    """

    def __init__(self, device: str, precision: str = "no", steps: int = 1, **scaler: Any) -> None:
        handlers = [GradScalerKwargs(**{"init_scale": 1024.0} | scaler)] if precision == "fp16" else []
        self.accelerator = Accelerator(
            cpu=device == "cpu",
            mixed_precision=precision,
            gradient_accumulation_steps=steps,
            kwargs_handlers=handlers,
        )
        if precision == "fp16" and device == "cpu":
            force_float16(self.accelerator)
        self.weight = weight_of(device)
        optimizer = torch.optim.SGD([self.weight], lr=0.5)
        halving = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        self.optimizer, self.scheduler = self.accelerator.prepare(optimizer, halving)

    def step(self, value: float, clip: float | None = None) -> None:
        """One micro-batch whose loss has this gradient everywhere, as the guides write it."""
        with self.accelerator.accumulate():
            self.accelerator.backward((self.weight * value).sum())
            if clip is not None and self.accelerator.sync_gradients:
                self.accelerator.clip_grad_norm_([self.weight], clip)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()

    def weights(self, values: Sequence[float], clip: float | None = None) -> list[float]:
        """The first weight after each of these micro-batches."""
        result = []
        for value in values:
            self.step(value, clip)
            result.append(self.weight[0].item())
        return result

    @property
    def scaler(self) -> torch.amp.GradScaler:
        scaler: torch.amp.GradScaler = self.accelerator.scaler
        return scaler


def _format_inside(precision: str, dtype: torch.dtype, device: str) -> bool:
    made, formats = _Attempt(device, precision), list[torch.dtype]()
    layer = torch.nn.Linear(4, 4).to(device)
    layer.register_forward_hook(lambda _layer, _inputs, output: formats.append(output.dtype))
    model = made.accelerator.prepare(torch.nn.Sequential(layer))
    return bool(model(torch.ones(2, 4, device=device)).dtype == torch.float32 and formats == [dtype])


def _dynamic(device: str) -> bool:
    made = _Attempt(device, "fp16")
    return made.weights((math.inf, 1.0)) == [1.0, 0.5] and made.scaler.get_scale() == 512.0


def _static(device: str) -> bool:
    made = _Attempt(device, "fp16", growth_factor=1.0, backoff_factor=1.0)
    return made.weights((math.inf, 1.0)) == [1.0, 0.5] and made.scaler.get_scale() == 1024.0


def _factors(device: str) -> bool:
    made = _Attempt(device, "fp16", init_scale=16.0, growth_factor=4.0, backoff_factor=0.125, growth_interval=1)
    made.step(1.0)
    grown = made.scaler.get_scale()
    made.step(math.nan)
    return (grown, made.scaler.get_scale()) == (64.0, 8.0)


def _disabled(device: str) -> bool:
    made = _Attempt(device, "fp16", enabled=False)
    return made.weights((1.0,)) == [0.5] and made.scaler.get_scale() == 1.0


def _unscales(device: str, calls: int = 1) -> bool:
    made = _Attempt(device, "fp16")
    made.accelerator.backward(made.weight.sum())
    made.accelerator.unscale_gradients()
    refused = False
    if calls > 1:
        try:
            made.accelerator.unscale_gradients()
        except RuntimeError:
            refused = True
    return made.weight.grad is not None and bool((made.weight.grad == 1.0).all()) and refused == (calls > 1)


def _two_optimizers(device: str) -> bool:
    made, other = _Attempt(device, "fp16"), weight_of(device)
    second = made.accelerator.prepare(torch.optim.SGD([other], lr=0.5))
    made.accelerator.backward((made.weight + other).sum())
    made.optimizer.step()
    second.step()
    return bool((made.weight == 0.5).all()) and bool((other == 0.5).all())


def _two_losses(device: str) -> bool:
    made = _Attempt(device, "fp16")
    shared = made.weight * 1.0
    made.accelerator.backward(shared.sum(), retain_graph=True)
    made.accelerator.backward(shared.sum())
    made.optimizer.step()
    return bool((made.weight == 0.0).all())


def _accumulation(device: str) -> bool:
    return _Attempt(device, steps=2).weights((1.0, 3.0, 1.0)) == [1.0, 0.0, 0.0]


def _partial_window(device: str) -> bool:
    made = _Attempt(device, steps=4)
    loader = made.accelerator.prepare(torch.utils.data.DataLoader([1.0, 1.0], batch_size=1))
    for value in loader:
        made.step(float(value[0]))
    return bool((made.weight != 1.0).all())


def _clip(device: str) -> bool:
    return 0.6 < _Attempt(device, "fp16").weights((8.0,), clip=1.0)[0] < 0.7


def _schedule(device: str) -> bool:
    made = _Attempt(device, "fp16", steps=2)
    made.weights((1.0, 1.0, math.inf, 1.0))
    return bool(made.scheduler.get_last_lr() == [0.25])


def _checkpoint(device: str) -> bool:
    made = _Attempt(device, "fp16")
    made.step(math.inf)
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(enabled=True):
        made.accelerator.save_state(folder)
        made.step(math.inf)
        made.accelerator.load_state(folder)
    return made.scaler.get_scale() == 512.0


def bfloat16_is_scaled(device: str) -> bool:
    """Whether an accelerator of bfloat16 has a loss scaler."""
    with first_state():
        accelerator = Accelerator(cpu=device == "cpu", mixed_precision="bf16", kwargs_handlers=[GradScalerKwargs()])
        return accelerator.scaler is not None


_PROBES: dict[Capability, Probe] = {
    Capability.O1_FLOAT16: partial(_format_inside, "fp16", torch.float16),
    Capability.O1_BFLOAT16: partial(_format_inside, "bf16", torch.bfloat16),
    Capability.DYNAMIC_SCALING: _dynamic,
    Capability.STATIC_SCALING: _static,
    Capability.SCALING_FACTORS: _factors,
    Capability.SCALING_DISABLED: _disabled,
    Capability.EXPLICIT_UNSCALE: _unscales,
    Capability.SECOND_UNSCALE: partial(_unscales, calls=2),
    Capability.TWO_OPTIMIZERS: _two_optimizers,
    Capability.TWO_LOSSES: _two_losses,
    Capability.ACCUMULATION: _accumulation,
    Capability.PARTIAL_WINDOW: _partial_window,
    Capability.CLIP: _clip,
    Capability.SCHEDULE: _schedule,
    Capability.CHECKPOINT: _checkpoint,
}


def attempts(device: str) -> dict[Capability, Attempt]:
    """Attempts by capability; each has a state of its own."""
    own: dict[Capability, Attempt] = {
        Capability.LIBRARY_REQUESTS: partial(_answers, device),
        Capability.DATA_POSITION: partial(_feeds, device),
    }
    return own | all_guarded(_PROBES, device, first_state, partial(devices.random_apart, device))


def resumed_epoch(order: RowOrder, windows: int, device: str) -> tuple[DataRun, DataRun]:
    """The unbroken and the resumed run, as the guide on checkpoints writes them."""
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for resumed in (False, True):
            with first_state(), torch.random.fork_rng():
                torch.manual_seed(1 + resumed)
                runs.append(_epochs(order, windows, folder, device, resumed=resumed))
    return runs[0], runs[1]


def _epochs(order: RowOrder, windows: int, folder: str, device: str, *, resumed: bool) -> DataRun:
    accelerator = Accelerator(cpu=device == "cpu", gradient_accumulation_steps=STEPS)
    model = Dropping()
    model, optimizer, rows = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader(order))
    done = windows * STEPS
    if resumed:
        accelerator.load_state(folder)
    model.train()
    for epoch in range(done // ROWS if resumed else 0, EPOCHS):
        skipped = done % ROWS if resumed and epoch == done // ROWS else 0
        rows.set_epoch(epoch)
        for place, row in enumerate(accelerator.skip_first_batches(rows, skipped) if skipped else rows, skipped + 1):
            with accelerator.accumulate(model):
                accelerator.backward(model(**row)["loss"])
                optimizer.step()
                optimizer.zero_grad()
            if not resumed and epoch * ROWS + place == done:
                accelerator.save_state(folder)
    run: Dropping = accelerator.unwrap_model(model)
    return run.since(0 if resumed else done)


def requested(format_name: FormatName, device: str) -> FormatRequest:
    """What accelerate makes of a request for mixed precision, without this adapter's additions."""
    asked = {"float16": "fp16", "bfloat16": "bf16"}[format_name]
    with first_state(), watched() as warned:
        accelerator = Accelerator(cpu=device == "cpu", mixed_precision=asked)
        layer, formats = torch.nn.Linear(2, 2), list[torch.dtype]()
        layer.register_forward_hook(lambda _layer, _inputs, output: formats.append(output.dtype))
        model = accelerator.prepare(torch.nn.Sequential(layer))
        model(torch.ones(1, 2, device=accelerator.device))
        reported = {"fp16": "float16", "bf16": "bfloat16", "no": "float32"}[accelerator.mixed_precision]
    return FormatRequest(dtype_name(formats[0]), reported, warned=bool(warned))


def _answers(device: str) -> bool:
    return requested("bfloat16", device).ran == "bfloat16"


def _feeds(device: str) -> bool:
    unbroken, resumed = resumed_epoch("in-order", 4, device)
    return unbroken.rows == resumed.rows == tuple(range(8))
