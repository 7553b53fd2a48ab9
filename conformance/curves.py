"""Records the curves of a training loop of your own, for `conformance curves`.

A file has one JSON line for each step: loss, gradient norm before and after clipping, learning rate, loss scale,
whether the step was skipped, and a checksum of the batch. The first line has the versions of the packages.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
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
        self._optimizer: Any = None
        self._scaler: Any = None
        self._scale: float | None = None
        self._pending: dict[str, Any] = {}
        self._applied: dict[str, Any] = {}
        self._hooks = ExitStack()
        self.watch(optimizer, scaler)
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

    def watch(self, optimizer: Any = None, scaler: Any = None) -> None:
        """Record this PyTorch optimizer and scaler from now on, where they are made later than the recorder."""
        self._optimizer, self._scaler = optimizer, scaler
        self._scale = self._read_scale()
        self._hooks.close()
        if optimizer is not None:
            self._hooks.callback(optimizer.register_step_post_hook(self._read_optimizer).remove)

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
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        norms = [weight.grad.detach().norm() for weight in weights if weight.grad is not None]
        self._applied["clipped_norm"] = sum(norm.float() ** 2 for norm in norms) ** 0.5
        self._applied["learning_rate"] = _detach(optimizer.param_groups[0]["lr"])


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def _detach(value: Any) -> Any:
    """Return a value that later changes in place do not reach."""
    if isinstance(value, np.ndarray):
        return value.copy()
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
    return _detach(flat[:: max(1, flat.shape[0] // SAMPLED)])


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
