"""What every adapter's classes share: the window loop, the whole state, refusals and what is observed of them."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter_ns, process_time_ns

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import DynamicScaling, Recipe, StaticScaling
from frameworks.contract import Attempt, Capability, Declaration, LayerTrace, MissingDevice, Unsupported, Update

NO_TF32 = "TensorFloat-32 is a format of NVIDIA's GPUs, from compute capability 8.0 on"
"""Why a device has no products in it."""


def elapsed(work: Callable[[], object], clock: Callable[[], int] = perf_counter_ns) -> int:
    """Nanoseconds that pass by a clock, the host's by default, until `work` returns."""
    begin = clock()
    work()
    return clock() - begin


def observed(attempt: Attempt) -> bool:
    """Whether an attempt acted: it returned True without a warning. What returns False, warns or raises did not."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            acted = attempt()
        except Exception:
            return False
    return bool(acted) and not warned


def traced_paths(model: Model, batch: Batch) -> tuple[str, ...]:
    """Paths of the layers that a trace of this batch shows, in its order: all but heads without targets."""
    last = f"{len(model.layers) - 1}."
    return tuple(
        path for path in model.output_shapes() if not path.startswith(last) or path.removeprefix(last) in batch.targets
    )


def unscaled_in_trace(gradient: Array, scale: float) -> Array:
    """The gradient for an output without the loss scale; in float32 or wider where there is one to divide out."""
    if scale == 1.0:
        return gradient
    return np.asarray(gradient.astype(np.promote_types(gradient.dtype, np.float32)) / scale)


def same_parts(file: Path, saved: Collection[str], own: Collection[str]) -> None:
    """Refuses a checkpoint whose parts (model, optimizer, scaler, ...) are not those of the run that loads it.

    The container that holds the parts is the user's, so no framework compares them; each part is then loaded by the
    framework's own call, without a further check.

    Raises:
        ValueError: a part is on one side only.
    """
    if missing := sorted(set(own) - set(saved)):
        raise ValueError(f"{file} lacks {', '.join(missing)}, which this run has")
    if strange := sorted(set(saved) - set(own)):
        raise ValueError(f"{file} holds {', '.join(strange)}, for which this run has no place")


class BaseTrainer(ABC):
    """Default `update` and `state`, and refusals for the verbs that an adapter leaves out."""

    @abstractmethod
    def accumulate(self, batch: Batch, items: int) -> float: ...

    @abstractmethod
    def apply(self) -> Update: ...

    @abstractmethod
    def parameters(self) -> dict[str, Array]: ...

    def update(self, window: Window) -> Update:
        items = sum(batch.items for batch in window)
        for batch in window:
            self.accumulate(batch, items)
        return self.apply()

    def master_parameters(self) -> dict[str, Array]:
        return self.parameters()

    def optimizer_state(self) -> dict[str, Array]:
        return {}

    def buffers(self) -> dict[str, Array]:
        return {}

    def scaler_state(self) -> dict[str, Array]:
        return {}

    def scaler_settings(self) -> dict[str, float]:
        return {}

    def accumulator(self) -> dict[str, Array]:
        return {}

    def random_state(self) -> dict[str, Array]:
        return {}

    def state(self) -> dict[str, Array]:
        parts = {
            "parameter": self.parameters(),
            "master": self.master_parameters(),
            "optimizer": self.optimizer_state(),
            "buffer": self.buffers(),
            "scaler": self.scaler_state(),
            "accumulator": self.accumulator(),
            "random": self.random_state(),
        }
        return {f"{part}/{name}": np.array(value) for part, values in parts.items() for name, value in values.items()}

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        raise Unsupported(Capability.AVERAGE, f"this adapter has no average to evaluate {len(inputs)} samples with")

    def segment_calls(self) -> tuple[int, ...]:
        raise Unsupported(Capability.SEGMENT_CALLS, "this adapter counts no segment calls")

    def save(self, path: Path) -> None:
        raise Unsupported(Capability.CHECKPOINT, f"this adapter cannot save to {path.name}")

    def restore(self, path: Path) -> None:
        raise Unsupported(Capability.CHECKPOINT, f"this adapter cannot restore {path.name}")

    def saved_bytes(self, batch: Batch) -> int:
        raise Unsupported(Capability.SAVED_BYTES, f"this adapter cannot count bytes saved for {len(batch)} samples")

    def trace(self, batch: Batch) -> LayerTrace:
        raise Unsupported(Capability.TRACE, f"this adapter does not show what its layers make of {len(batch)} samples")

    def peak_bytes(self) -> int:
        raise Unsupported(Capability.PEAK_BYTES, "no device")


class BaseFramework(ABC):
    """Binds device and mode, and turns declarations into refusals."""

    name: str
    modes: tuple[str, ...]

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        available = self.devices()
        chosen = available[-1] if device == "auto" else device
        if chosen not in available:
            raise MissingDevice(f"{self.name} sees no device {chosen!r} here; it sees {', '.join(available)}")
        if mode is not None and mode not in self.modes:
            raise ValueError(f"{self.name} has no mode {mode!r}: one of {', '.join(self.modes)}")
        self.device = chosen
        self.mode = mode or self.modes[0]
        self._observed: dict[Capability, bool] = {}

    @abstractmethod
    def devices(self) -> tuple[str, ...]:
        """Devices that are there, the preferred one last."""

    @abstractmethod
    def declares(self, capability: Capability) -> Declaration: ...

    def require(self, capability: Capability) -> None:
        """Raises `Unsupported` unless the capability is declared."""
        declaration = self.declares(capability)
        if not declaration.supported:
            raise Unsupported(capability, declaration.reason)

    def require_recipe(self, recipe: Recipe) -> None:
        """Refuses a recipe that this framework cannot follow.

        Raises:
            Unsupported: for the first thing that the recipe asks for and the framework does not declare.
            ValueError: there is no such recomputation variant.
        """
        for capability in needs(recipe):
            self.require(capability)
        if recipe.recompute is not None:
            self.variant(recipe.recompute.variant)

    def variant(self, name: str | None) -> str:
        """The recomputation variant of this name, the default one for None.

        Raises:
            ValueError: there is no such variant.
        """
        offered = self.recompute_variants()
        if name is not None and name not in offered:
            raise ValueError(f"{self.name} has no recompute variant {name!r}: {_one_of(offered)}")
        return name or next(iter(offered), "")

    def tf32(self, allowed: bool) -> AbstractContextManager[None]:
        reason = self.declares(Capability.TF32).reason
        raise Unsupported(Capability.TF32, reason or f"this adapter cannot switch it {'on' if allowed else 'off'}")

    def timed(self, work: Callable[[], object]) -> int:
        return elapsed(work, process_time_ns if self.device == "cpu" else perf_counter_ns)

    def recompute_variants(self) -> tuple[str, ...]:
        return ()

    def attempts(self) -> Mapping[Capability, Attempt]:
        """The framework's own call for each capability, on this device, in this mode, without this adapter's guards."""
        return {}

    def probe(self, capability: Capability) -> bool | None:
        """What `attempts` shows of the capability, asked once; None where there is no attempt."""
        if capability not in self._observed:
            attempt = self.attempts().get(capability)
            if attempt is None:
                return None
            self._observed[capability] = observed(attempt)
        return self._observed[capability]

    def global_state(self) -> dict[str, str]:
        return {}

    def restore_global_state(self, state: Mapping[str, str]) -> None:  # noqa: B027
        """Nothing to restore by default."""


def _one_of(names: Collection[str]) -> str:
    return f"one of {', '.join(names)}" if names else "it has none"


def needs(recipe: Recipe) -> tuple[Capability, ...]:
    """The capabilities that a recipe asks for."""
    asked: list[Capability | None] = [Capability.of(recipe.precision)]
    match recipe.scaling:
        case DynamicScaling(enabled=enabled):
            asked.append(Capability.DYNAMIC_SCALING if enabled else Capability.SCALING_DISABLED)
        case StaticScaling():
            asked.append(Capability.STATIC_SCALING)
    conditions = {
        Capability.ACCUMULATION: recipe.accumulation > 1,
        Capability.RECOMPUTE: recipe.recompute is not None,
        Capability.RECOMPUTE_NESTED: recipe.recompute is not None and recipe.recompute.depth > 1,
        Capability.CLIP: recipe.clip is not None,
        Capability.SCHEDULE: recipe.schedule is not None,
        Capability.GROUPS: recipe.groups > 1,
        Capability.TWO_OPTIMIZERS: recipe.optimizers > 1,
        Capability.TWO_LOSSES: recipe.separate_losses,
        Capability.AVERAGE: recipe.average is not None,
    }
    asked += [capability for capability, wanted in conditions.items() if wanted]
    return tuple(capability for capability in asked if capability is not None)
