"""PyTorch trained by accelerate, and attempts with accelerate's own calls."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import GradScalerKwargs

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import FormatName, Recipe
from frameworks.contract import Attempt, Capability, DataRun, FormatRequest, RowOrder, Unsupported
from frameworks.torch.core import devices
from frameworks.torch.core.arrays import dtype_name
from frameworks.torch.core.guards import Probe, all_guarded
from frameworks.torch.stacks.accelerate_run import AccelerateTrainer, force_float16
from frameworks.torch.stacks.accelerate_state import first_state
from frameworks.torch.stacks.framework import StackFramework
from frameworks.torch.stacks.library_runs import EPOCHS, ROWS, STEPS, Dropping, loader, watched
from frameworks.torch.training.optimizer_probes import weight_of

REFUSED: Mapping[Capability, str] = {
    Capability.STATIC_SCALING: "accelerate calls GradScaler.update without a scale, and no setting keeps the scale"
}
BFLOAT16_SCALED = "accelerate's loss scaler comes with mixed_precision='fp16', and its bfloat16 has none"


class AccelerateFramework(StackFramework):
    """Every recipe is trained by the loop that accelerate documents, with one accelerator for each run."""

    of_library = frozenset({Capability.LIBRARY_REQUESTS, Capability.DATA_POSITION})

    def refused(self) -> Mapping[Capability, str]:
        return REFUSED

    def library_attempts(self) -> Mapping[Capability, Attempt]:
        """Attempts by capability; each has a state of its own."""
        return all_guarded(_PROBES, self.device, first_state, partial(devices.random_apart, self.device))

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> AccelerateTrainer:
        if recipe.scaling is not None and recipe.precision.label == "O1-bfloat16":
            attempt = partial(_bfloat16_is_scaled, self.device)
            raise Unsupported(Capability.DYNAMIC_SCALING, BFLOAT16_SCALED, attempt)
        return AccelerateTrainer(model, recipe, weights, self.device, self.mode)

    def requested(self, format_name: FormatName) -> FormatRequest:
        """What accelerate makes of a request for mixed precision, without this adapter's additions."""
        asked = {"float16": "fp16", "bfloat16": "bf16"}[format_name]
        with first_state(), watched() as warned:
            accelerator = Accelerator(cpu=self.device == "cpu", mixed_precision=asked)
            layer, formats = torch.nn.Linear(2, 2), list[torch.dtype]()
            layer.register_forward_hook(lambda _layer, _inputs, output: formats.append(output.dtype))
            model = accelerator.prepare(torch.nn.Sequential(layer))
            model(torch.ones(1, 2, device=accelerator.device))
            reported = {"fp16": "float16", "bf16": "bfloat16", "no": "float32"}[accelerator.mixed_precision]
        return FormatRequest(dtype_name(formats[0]), reported, warned=bool(warned))

    def resumed_epoch(self, order: RowOrder, windows: int) -> tuple[DataRun, DataRun]:
        """The unbroken and the resumed run, as the guide on checkpoints writes them."""
        with tempfile.TemporaryDirectory() as folder:
            runs = []
            for resumed in (False, True):
                with first_state(), torch.random.fork_rng():
                    torch.manual_seed(1 + resumed)
                    runs.append(_epochs(order, windows, folder, self.device, resumed=resumed))
        return runs[0], runs[1]


class _Attempt:
    """Two weights of ones, and SGD with a rate of 0.5, prepared by an accelerator.

    Args:
        precision: "no", "fp16" or "bf16".
        scaler: settings of `GradScalerKwargs`.
    """

    def __init__(self, device: str, precision: str = "no", **scaler: Any) -> None:
        handlers = [GradScalerKwargs(**{"init_scale": 1024.0} | scaler)] if precision == "fp16" else []
        self.accelerator = Accelerator(cpu=device == "cpu", mixed_precision=precision, kwargs_handlers=handlers)
        if precision == "fp16" and device == "cpu":
            force_float16(self.accelerator)
        self.weight = weight_of(device)
        self.optimizer = self.accelerator.prepare(torch.optim.SGD([self.weight], lr=0.5))

    def weights(self, values: Sequence[float]) -> list[float]:
        """The first weight after a step from each of these gradients, the same everywhere."""
        result = []
        for value in values:
            self.accelerator.backward((self.weight * value).sum())
            self.optimizer.step()
            self.optimizer.zero_grad()
            result.append(self.weight[0].item())
        return result


def _format_inside(precision: str, dtype: torch.dtype, device: str) -> bool:
    made, formats = _Attempt(device, precision), list[torch.dtype]()
    layer = torch.nn.Linear(4, 4).to(device)
    layer.register_forward_hook(lambda _layer, _inputs, output: formats.append(output.dtype))
    model = made.accelerator.prepare(torch.nn.Sequential(layer))
    return bool(model(torch.ones(2, 4, device=device)).dtype == torch.float32 and formats == [dtype])


def _dynamic(device: str) -> bool:
    made = _Attempt(device, "fp16")
    return made.weights((math.inf, 1.0)) == [1.0, 0.5] and made.accelerator.scaler.get_scale() == 512.0


def _static(device: str) -> bool:
    made = _Attempt(device, "fp16", growth_factor=1.0, backoff_factor=1.0)
    return made.weights((math.inf, 1.0)) == [1.0, 0.5] and made.accelerator.scaler.get_scale() == 1024.0


def _bfloat16_is_scaled(device: str) -> bool:
    """Whether an accelerator of bfloat16 has a loss scaler."""
    with first_state():
        accelerator = Accelerator(cpu=device == "cpu", mixed_precision="bf16", kwargs_handlers=[GradScalerKwargs()])
        return accelerator.scaler is not None


_PROBES: dict[Capability, Probe] = {
    Capability.O1_FLOAT16: partial(_format_inside, "fp16", torch.float16),
    Capability.O1_BFLOAT16: partial(_format_inside, "bf16", torch.bfloat16),
    Capability.DYNAMIC_SCALING: _dynamic,
    Capability.STATIC_SCALING: _static,
}


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
