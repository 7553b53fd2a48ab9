"""Base classes of frameworks and number formats: device, mode, declarations, refusals and attempts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from time import perf_counter_ns, process_time_ns
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast

from fixtures.arrays import Array
from fixtures.model import FunctionUse, Model
from fixtures.recipe import FormatName, Offload, Precision, Ranks, Recipe
from fixtures.schedules import Plateau
from frameworks.base.capability_attempts import has_appeared, has_effect
from frameworks.base.host import measure_elapsed
from frameworks.base.rank_group import BaseRankGroup
from frameworks.base.shipped import BaseShipped
from frameworks.base.trainer import BaseTrainer, Refusing
from frameworks.contract import (
    NOT_OFFERED,
    SHIPPED,
    SUPPORTED,
    Attempt,
    Capability,
    DataRun,
    Declaration,
    FormatRequest,
    FunctionFormat,
    FunctionResult,
    LoadedRun,
    MissingDevice,
    Part,
    RecomputeCase,
    RecomputeResult,
    RowOrder,
    Trainer,
    Unsupported,
    needs,
)
from frameworks.contract.quantization import offer_of
from frameworks.registry import adapter_file, find_adapters
from frameworks.ways import resolve

GPU = "gpu"
"""A user's word for the GPU, and the device name of one that is neither for CUDA nor for ROCm."""
NOT_OVER_RANKS = "how ranks take their largest magnitudes together is no part of the contract"
"""Reason of a refusal."""

R = TypeVar("R")
Run = TypeVar("Run", bound=BaseTrainer)


def gpu_name(*, cuda: bool, rocm: bool) -> str:
    """Device name of a GPU, in a build for CUDA, for ROCm, or for another platform."""
    return "cuda" if cuda else "rocm" if rocm else GPU


def named_device(asked: str, available: Sequence[str]) -> str:
    """The available device for a user's "auto" (the last one), "gpu", or device name."""
    if asked == "auto":
        return available[-1]
    if asked == GPU:
        return next((name for name in available if name in ("cuda", "rocm")), GPU)
    return asked


class BaseFramework(Refusing):
    """Binds device and mode, and turns declarations into refusals."""

    name: str
    modes: tuple[str, ...]
    ranks_of_modes: Mapping[str, Ranks] = MappingProxyType({})
    """Ranks of a mode, for recipes without ranks."""
    offload_of_modes: Mapping[str, Offload] = MappingProxyType({})
    """Offload of a mode, for recipes without offload."""

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        available = self.devices()
        chosen = named_device(device, available)
        if chosen not in available:
            raise MissingDevice(f"{self.name} sees no device {chosen!r} here; it sees {', '.join(available)}")
        if mode is not None and mode not in self.modes:
            raise ValueError(f"{self.name} has no mode {mode!r}: one of {', '.join(self.modes)}")
        self.device = chosen
        self.mode = mode or self.modes[0]
        self._observed: dict[Capability, bool] = {}
        self._shipped: dict[Part, BaseShipped] = {}
        own = f"{type(self).__module__}:{type(self).__qualname__}"
        self._file = adapter_file(self.name if self.name in find_adapters() else own)

    @abstractmethod
    def devices(self) -> tuple[str, ...]:
        """Available devices, the preferred one last."""

    def refusals(self) -> Mapping[Capability, str]:
        """Unsupported capabilities on this device, in this mode, each with its reason in one sentence."""
        return {}

    def supported_capabilities(self) -> Collection[Capability]:
        """Supported capabilities on this device, in this mode, whose effect the clauses that need them show.

        A capability is not offered if it is not here, not in `attempts`, and not declared absent in the adapter's file.
        """
        return ()

    def attempts(self) -> Mapping[Capability, Attempt]:
        """Attempts by capability: the framework's own call on this device, in this mode, without the adapter's guards.

        There is one for each capability of `refusals`, and for each other capability that some version, device or mode
        refuses or silently ignores.
        """
        return {}

    def declares(self, capability: Capability) -> Declaration:
        if (reason := self.refusals().get(capability)) is not None:
            return Declaration(False, reason)
        if capability in self.supported_capabilities() or capability in self.attempts():
            return SUPPORTED
        absence = self._file.absence(capability, self.mode)
        return NOT_OFFERED if absence is None else Declaration(False, absence.reason)

    def bind(self, run: Run) -> Run:
        """Gives the run this framework's declarations, by which its methods refuse, and returns the run."""
        run.declares = self.declares
        return run

    def require_recipe(self, recipe: Recipe) -> None:
        """Refuses a recipe that this framework cannot follow.

        Raises:
            Unsupported: for the first capability that the recipe needs and the framework does not support.
            ValueError: the recomputation variant is unknown.
        """
        for capability in needs(recipe):
            self.require(capability)
        if recipe.ranks is not None and Capability.FLOAT8_TRAINING in needs(recipe):
            raise Unsupported(Capability.FLOAT8_TRAINING, NOT_OVER_RANKS)
        if recipe.recompute is not None:
            self.variant(recipe.recompute.variant)

    def variant(self, name: str | None) -> str:
        """The recomputation variant of this name, the default one for None.

        Raises:
            ValueError: the variant is unknown.
        """
        offered = self.recompute_variants()
        if name is not None and name not in offered:
            known = f"one of {', '.join(offered)}" if offered else "it has none"
            raise ValueError(f"{self.name} has no recompute variant {name!r}: {known}")
        return name or next(iter(offered), "")

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        raise self.refusal(Capability.AUTOCAST_SCOPE)

    def tf32(self, allowed: bool | None) -> AbstractContextManager[None]:
        raise self.refusal(Capability.TF32)

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        raise self.refusal(Capability.RECOMPUTE_CASES)

    def measure_time(self, work: Callable[[], object]) -> int:
        return measure_elapsed(work, process_time_ns if self.device == "cpu" else perf_counter_ns)

    def recompute_variants(self) -> tuple[str, ...]:
        return ()

    def function_ways(self) -> Mapping[str, FunctionFormat]:
        return {}

    def function_used(
        self, use: FunctionUse, inputs: tuple[Array, Array, Array], variant: str | None = None
    ) -> FunctionResult:
        raise self.refusal(Capability.FUNCTION_USES)

    def ranks(self) -> Ranks | None:
        return self.ranks_of_modes.get(self.mode)

    def offload(self) -> Offload | None:
        return self.offload_of_modes.get(self.mode)

    def plain_trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        raise self.refusal(Capability.PLAIN_LOOP)

    def request_format(self, format_name: FormatName) -> FormatRequest:
        raise self.refusal(Capability.LIBRARY_REQUESTS)

    def loaded_run(self, saved: FormatName, updates: int, rate: float) -> LoadedRun:
        raise self.refusal(Capability.LOADED_CHECKPOINT)

    def resumed_epoch(self, order: RowOrder, windows: int) -> tuple[DataRun, DataRun]:
        raise self.refusal(Capability.DATA_POSITION)

    def rank_group(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseRankGroup:
        raise self.refusal(Capability.RANKS_REPLICATED)

    def parts(self) -> Mapping[Part, Callable[[], BaseShipped]]:
        """A factory for each kind of shipped parts of which the adapter has examples."""
        return {}

    def get_shipped(self, part: Part) -> BaseShipped:
        self.require(SHIPPED[part])
        if part not in self._shipped:
            self._shipped[part] = self.parts()[part]()
        return self._shipped[part]

    def rules(self) -> Mapping[type, Callable[[], Any]]:
        """A factory for each rule or interface of a technique, by the class that `rule` is asked for."""
        return {}

    def rule(self, kind: type[R]) -> R:
        capability, several = offer_of(kind)
        factory = self.rules().get(kind)
        if factory is None:
            raise self.refusal(capability)
        if not several:
            self.require(capability)
        return cast(R, factory())

    def count_schedule_steps(self, *, frequency: int, accumulation: int, epochs: Sequence[int]) -> tuple[int, ...]:
        raise self.refusal(Capability.SCHEDULE_FREQUENCY)

    def plateau(self, plateau: Plateau, metrics: Sequence[float], saved: int | None = None) -> tuple[float, ...]:
        raise self.refusal(Capability.PLATEAU)

    def clip_in_manual_step(self, gradient: Array, *, limit: float, scale: float) -> Array:
        raise self.refusal(Capability.MANUAL_STEP)

    def gradient_in_hook(self, gradient: Array, *, scale: float, fused: bool) -> Array:
        raise self.refusal(Capability.STEP_HOOK)

    def probe(self, capability: Capability) -> bool | None:
        """The cached result of the capability's attempt.

        The attempt of a capability that the adapter's file declares absent is the search for its names. False if this
        adapter does not offer the capability, since no call could take effect; None if it is declared without attempt.
        """
        if capability not in self._observed:
            attempt = self.attempts().get(capability) or self._search(capability)
            if attempt is None:
                return False if self.declares(capability) == NOT_OFFERED else None
            self._observed[capability] = has_effect(attempt)
        return self._observed[capability]

    def _search(self, capability: Capability) -> Attempt | None:
        """The search for the names of an absent capability; None if the file names no places."""
        absence = self._file.absence(capability, self.mode)
        if absence is None or all(resolve(owner) is None for owner in absence.places):
            return None
        return partial(has_appeared, absence)

    def global_state(self) -> dict[str, str]:
        return {}

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        """Nothing to restore by default."""


class BaseFormats:
    """Base of number formats: refuses the optional products and packing."""

    def integer_product(self, a: Array, b: Array) -> Array:
        raise Unsupported.from_declaration(Capability.INTEGER_PRODUCTS, NOT_OFFERED)

    def float8_product(self, a: Array, b: Array, formats: tuple[str, str]) -> Array:
        raise Unsupported.from_declaration(Capability.FLOAT8_PRODUCTS, NOT_OFFERED)

    def pack(self, codes: Array, axis: Literal[0, 1]) -> Array:
        raise Unsupported.from_declaration(Capability.INT4_PACKING, NOT_OFFERED)

    def unpack(self, stored: Array, length: int, axis: Literal[0, 1]) -> Array:
        raise Unsupported.from_declaration(Capability.INT4_PACKING, NOT_OFFERED)
