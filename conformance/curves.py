"""Records the curves of a training loop of your own, for `conformance curves`.

A file has one JSON line for each step: loss, gradient norm before and after clipping, learning rate, loss scale,
whether the step was skipped, and a checksum of the batch. The first line has the versions of the packages.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

PACKAGES = (
    *("torch", "tensorflow", "keras", "jax", "jaxlib", "flax", "optax", "paddlepaddle", "numpy"),
    *("accelerate", "transformers", "lightning", "peft", "torchao"),
)
"""Packages whose versions a file names, where they are installed."""
SAMPLED = 4096
"""Largest number of values of an array that its checksum reads, evenly spaced."""


class CurveRecorder:
    """Writes a line for each step of a loop, which calls `step` once after each update.

    Values may be tensors of any framework: they are read one step later, so that a GPU is not waited for.

    Args:
        path: file to write; parent folders are created. By default the one that the variable CONFORMANCE_CURVE names,
            which `conformance bisect --run` sets, or else curve.jsonl.
        optimizer: a PyTorch optimizer. Its rate and the norm of the gradients that it applies are recorded.
        scaler: a `torch.amp.GradScaler`. Its scale, and whether it skipped the step, are recorded.
        precision: format of matrix products, such as "bfloat16".

    Examples:
        with CurveRecorder("new.jsonl", optimizer=optimizer, scaler=scaler) as curve:
            for batch in loader:
                ...
                norm = clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                curve.step(loss, batch=batch, gradient_norm=norm)
    """

    def __init__(
        self, path: str | Path | None = None, *, optimizer: Any = None, scaler: Any = None, precision: str = "float32"
    ) -> None:
        self.count = 0
        self._optimizer, self._scaler = optimizer, scaler
        self._pending: dict[str, Any] = {}
        self._applied: dict[str, Any] = {}
        self._scale = self._read_scale()
        self._hooks = ExitStack()
        if optimizer is not None:
            self._hooks.callback(optimizer.register_step_post_hook(self._read_optimizer).remove)
        self.path = Path(path or os.environ.get("CONFORMANCE_CURVE") or "curve.jsonl")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        header = {"curve": 1, "format": precision, "versions": _versions()}
        self.path.write_text(json.dumps(header) + "\n", "utf-8")

    def __enter__(self) -> CurveRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self, loss: Any, *, batch: Any = None, step: int | None = None, **series: Any) -> None:
        """Record an update.

        Args:
            loss: the loss of the step, a number or a tensor of one element.
            batch: arrays or tensors, also in lists, tuples and mappings.
            step: the step's number; by default calls are counted from 0.
            series: further numbers by name, such as `gradient_norm` before clipping.
        """
        self._write()
        number = self.count if step is None else step
        self.count = number + 1
        entry = {"step": number, "loss": _detach(loss)} | {name: _detach(value) for name, value in series.items()}
        applied, self._applied = self._applied, {}
        if "gradient_norm" not in series and "clipped_norm" in applied:
            entry["gradient_norm"] = applied.pop("clipped_norm")
        entry |= applied
        if self._scaler is not None:
            entry |= {"loss_scale": self._scale, "skipped": self._optimizer is not None and not applied}
            self._scale = self._read_scale()
        if batch is not None:
            entry["batch"] = [_sample(array) for array in _arrays(batch)]
        self._pending = entry

    def close(self) -> None:
        """Write the last step, and leave the optimizer alone; a second call does nothing."""
        self._write()
        self._hooks.close()

    def _write(self) -> None:
        if self._pending:
            entry = {name: value if name == "batch" else _number(value) for name, value in self._pending.items()}
            if "batch" in entry:
                entry["batch"] = _checksum(entry["batch"])
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        self._pending = {}

    def _read_scale(self) -> float | None:
        return None if self._scaler is None else float(self._scaler.get_scale())

    def _read_optimizer(self, optimizer: Any, *_: Any) -> None:
        import torch

        with torch.no_grad():
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            self._applied["clipped_norm"] = torch.nn.utils.get_total_norm(gradients)
        self._applied["learning_rate"] = optimizer.param_groups[0]["lr"]


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _detach(value: Any) -> Any:
    return value.detach().clone() if hasattr(value, "detach") else value


def _number(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else float(value)


def _arrays(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        for name in sorted(batch, key=str):
            yield from _arrays(batch[name])
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from _arrays(part)
    else:
        yield batch


def _sample(array: Any) -> Any:
    """Return evenly spaced values of an array or tensor, on its device."""
    if not hasattr(array, "shape") or not len(array.shape):
        return array
    if not hasattr(array, "reshape"):
        array = np.asarray(array)
    flat = array.reshape(-1)
    values = flat[:: max(1, flat.shape[0] // SAMPLED)]
    return values.detach().clone() if hasattr(values, "detach") else values


def _checksum(samples: list[Any]) -> str:
    total = 0
    for sample in samples:
        value = sample.cpu() if hasattr(sample, "cpu") else sample
        if type(value).__module__.startswith("torch") and str(value.dtype) == "torch.bfloat16":
            value = value.float()
        array = np.asarray(value)
        content = repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes()
        total = zlib.crc32(content, total)
    return f"{total:08x}"


def trainer_callback(path: str | Path | None = None, precision: str = "float32") -> Any:
    """Return a callback of transformers' `Trainer`, which records what it logs; `logging_steps=1` logs each step.

    The norm is the one that `Trainer` logs, before clipping; the norm after clipping is read before each update.
    """
    from transformers import TrainerCallback

    class CurveCallback(TrainerCallback):  # type: ignore[misc]
        recorder: CurveRecorder | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **others: Any) -> None:
            self.recorder = CurveRecorder(path, precision=precision)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
            if self.recorder is not None and logs and "loss" in logs:
                names = {"grad_norm": "gradient_norm", "learning_rate": "learning_rate"}
                series = {name: logs[key] for key, name in names.items() if key in logs}
                self.recorder.step(logs["loss"], step=state.global_step, **series)

        def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if self.recorder is not None:
                self.recorder.close()

    return CurveCallback()


def lightning_callback(path: str | Path | None = None, precision: str = "float32") -> Any:
    """Return a callback of Lightning's `Trainer`, which records every batch that ends with an update."""
    import torch
    from lightning.pytorch.callbacks import Callback

    class CurveCallback(Callback):  # type: ignore[misc]
        recorder: CurveRecorder | None = None
        norm: Any = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            self.recorder = CurveRecorder(path, optimizer=trainer.optimizers[0], scaler=scaler, precision=precision)
            self.updates = trainer.global_step

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
            self.norm = torch.nn.utils.get_total_norm(gradients)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if self.recorder is not None and self.norm is not None:
                loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs
                self.recorder.step(loss, batch=batch, gradient_norm=self.norm)
                self.norm = None

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            if self.recorder is not None:
                self.recorder.close()

    return CurveCallback()


def keras_callback(path: str | Path | None = None, precision: str = "float32") -> Any:
    """Return a callback of Keras' `fit`, which records every batch's loss.

    Keras logs the mean of an epoch so far. The callback resets it before each batch, so the progress bar shows each
    batch's loss as well.
    """
    import keras

    class CurveCallback(keras.callbacks.Callback):  # type: ignore[misc]
        recorder: CurveRecorder | None = None

        def on_train_begin(self, logs: Any = None) -> None:
            self.recorder = CurveRecorder(path, precision=precision)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.reset_metrics()
            self.rate = float(self.model.optimizer.learning_rate)
            scale = getattr(self.model.optimizer, "dynamic_scale", None)
            self.scale: dict[str, Any] = {} if scale is None else {"loss_scale": float(scale)}

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.recorder is not None:
                self.recorder.step(logs["loss"], learning_rate=self.rate, **self.scale)

        def on_train_end(self, logs: Any = None) -> None:
            if self.recorder is not None:
                self.recorder.close()

    return CurveCallback()
