"""PyTorch as a framework of the suite, the libraries whose training loops its modes drive, and the start of ranks."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from packaging.version import Version

from fixtures.arrays import Array
from fixtures.data import sincos_batch
from fixtures.model import FunctionUse, Model
from fixtures.models import sincos
from fixtures.optimizers import SGD, Adafactor, Adagrad, Muon
from fixtures.recipe import LEVELS_OF, MASTERED, Offload, Precision, Ranks, Recipe
from fixtures.schedules import Plateau
from frameworks.base import (
    BaseFramework,
    BaseRankGroup,
    BaseShipped,
    BaseTrainer,
    RankGroupTrainer,
    casts_of,
    measure_elapsed,
    offload_attempts,
    quantizers_of,
    ranks_of,
    shipped_attempts,
    techniques_of,
    window_across_ranks,
    with_ranks,
)
from frameworks.contract import (
    SHIPPED,
    Attempt,
    Capability,
    Conventions,
    EightBitRule,
    FunctionFormat,
    FunctionResult,
    LowRankAdapters,
    Meshes,
    NumberFormats,
    OpResult,
    Part,
    Pipelines,
    PostTraining,
    QatRule,
    Quantizers,
    RecomputeCase,
    RecomputeResult,
    Unsupported,
    ValueSaver,
    needs,
)
from frameworks.ranks import RemoteMeshes, RemoteRankGroup, worker_group_of
from frameworks.torch import shipped
from frameworks.torch.core import settings, ways
from frameworks.torch.core.operations import OPERATIONS, VARIANTS, WAYS, function_used, recompute
from frameworks.torch.core.schedules import plateau_rates
from frameworks.torch.core.settings import (
    DTYPES,
    dtype_name,
    parameters_leave,
    pin_kernels,
    read_environment,
    read_settings,
    tf32_products,
    to_array,
    to_tensor,
    write_settings,
)
from frameworks.torch.declarations import NO_MASTERS, capabilities_of, conventions, refusals
from frameworks.torch.distributed import deepspeed_start
from frameworks.torch.distributed.deepspeed_start import stays_without_gradient, trains
from frameworks.torch.probes import attempts, float16_clipped, scope_of_everything
from frameworks.torch.quantization import formats, torchao_models, transformers_models
from frameworks.torch.quantization.formats import TorchFormats, TorchQuantizers, products
from frameworks.torch.quantization.post_training import RULE, QatTrainer, TorchPostTraining, converts
from frameworks.torch.shipped import TorchFunctions, TorchOptimizers
from frameworks.torch.training import optimizers, trainer
from frameworks.torch.training.optimizers import NO_CLIPPING, wants_float32_gradients, wants_fused
from frameworks.torch.training.trainer import TorchTrainer

_MEMBER = "frameworks.torch.distributed.ranks:TorchWorker"
_FLAT_MEMBER = "frameworks.torch.distributed.fsdp1:Fsdp1Worker"
_ENGINE_MEMBER = "frameworks.torch.distributed.deepspeed:DeepSpeedWorker"
_MEMBERS = {"fsdp1": _FLAT_MEMBER, deepspeed_start.MODE: _ENGINE_MEMBER}
_ENVIRONMENT = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Silences a warning of DDP's reducer: find_unused_parameters is set although every parameter was used."""

_MIXED = "ZeroRedundancyOptimizer only supports the same dense type for all parameters"
_SGD = (
    "GradScaler.unscale_ refuses a float16 model's float16 gradients, and neither DDP's buckets nor fully_shard's "
    "shards hold float32 ones for it"
)
_FUSED = (
    "GradScaler.unscale_ refuses a float16 model's float16 gradients, and ZeroRedundancyOptimizer does not say that "
    "the optimizer inside it unscales them by itself"
)

_WHOLE = "bitsandbytes' update takes no DTensor, which fully_shard's parameters are"

_STRATEGY = "fused SGD and Adagrad raise NotImplementedError for the DTensors of fully_shard"
_FLAT = "a flat tensor of several parameters, or a part of one, has no rows and columns"
_NORMS = "torch.optim.Adafactor squares norms of a DTensor's rows in place, which RuntimeError refuses"


def is_flat(mode: str, recipe: Recipe) -> bool:
    """Returns whether this mode shards parameters or gradients with FSDP1, whose scaler accepts float16 gradients."""
    return mode == "fsdp1" and recipe.ranks is not None and recipe.ranks.level in ("gradients", "full")


def rank_group(
    model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None, *, mode: str = "eager"
) -> BaseRankGroup:
    """The ranks of a new run in a mode, each a process on the CPU.

    Raises:
        Unsupported: PyTorch's ranks do not do what the recipe asks for.
        ValueError: the recipe names no ranks.
    """
    if refused := _refuse_parts(recipe, mode):
        raise Unsupported(*refused, partial(_equals_single_run, model, recipe, mode))
    start = partial(_start_rank_group, mode=mode)
    if mode == deepspeed_start.MODE:
        deepspeed_start.require_together(model, recipe, start)
        return start(model, recipe, weights)
    for capability, reason in _find_refusals(model, recipe, mode):
        no_masters = reason == NO_MASTERS
        attempt = attempts("cpu", "eager")[capability] if no_masters else partial(trains, start, model, recipe)
        raise Unsupported(capability, reason, attempt)
    return start(model, recipe, weights)


def _find_refusals(model: Model, recipe: Recipe, mode: str) -> Iterator[tuple[Capability, str]]:
    """Capabilities that PyTorch supports only without ranks, with reasons."""
    level = recipe.ranks.level if recipe.ranks is not None else "replicated"
    formats = {model.parameter_format(name) for name in model.parameter_shapes()}
    if level == "optimizer" and len(formats) > 1:
        yield Capability.FLOAT64_HEADS, _MIXED
    if level in ("replicated", "optimizer") and recipe.precision.level == "O2":
        yield Capability(f"precision.{recipe.precision.label}"), NO_MASTERS
    if wants_float32_gradients(recipe) and not is_flat(mode, recipe):
        yield Capability.O3_FLOAT16, _SGD
    if level in ("gradients", "full") and not is_flat(mode, recipe):
        if Capability.ADAM_8BIT in needs(recipe):
            yield Capability.ADAM_8BIT, _WHOLE
        if recipe.implementation == "fused" and isinstance(recipe.optimizer, SGD | Adagrad):
            yield Capability.FUSED, _STRATEGY
    if level == "optimizer" and wants_fused(recipe):
        yield Capability.O3_FLOAT16, _FUSED


def _refuse_parts(recipe: Recipe, mode: str) -> tuple[Capability, str] | None:
    """The refusal of an optimizer that needs whole matrices, where this mode's ranks hold parts of them."""
    flat, optimizer = is_flat(mode, recipe), recipe.optimizer
    if isinstance(optimizer, Adafactor) and ranks_of(recipe).level in ("gradients", "full"):
        return Capability.ADAFACTOR, _FLAT if flat else _NORMS
    return (Capability.MUON, _FLAT) if flat and isinstance(optimizer, Muon) else None


def _equals_single_run(model: Model, recipe: Recipe, mode: str) -> bool:
    """Returns whether an update from power-of-two gradients equals that of a run without ranks."""
    shapes = model.parameter_shapes().items()
    gradients = {name: np.resize([1.0, -0.5, 0.25], shape).astype(np.float32) for name, shape in shapes}
    ranks, alone = (
        _start_rank_group(model, recipe, mode=mode),
        TorchTrainer(model, recipe.replace(ranks=None), None, "cpu", "eager"),
    )
    ranks.apply_gradients([[gradients]] * ranks.count)
    alone.apply_gradients(gradients)
    result, wanted = ranks.all("parameters")[0], alone.parameters()
    return all(np.allclose(result[name], value, rtol=2.0**-18) for name, value in wanted.items())


def _start_rank_group(
    model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None, *, mode: str = "eager"
) -> BaseRankGroup:
    count = ranks_of(recipe).count
    member, environment = _MEMBERS.get(mode, _MEMBER), _ENVIRONMENT
    if mode == deepspeed_start.MODE:
        deepspeed_start.require()
        environment = environment | deepspeed_start.environment()
    worker_group = worker_group_of(member, count, "cpu", "eager", environment)
    return RemoteRankGroup(worker_group, worker_group.make([(model, recipe, weights)] * count))


def own_attempts(mode: str) -> dict[Capability, Attempt]:
    """Attempts of a mode that differ if there are ranks."""
    if mode == deepspeed_start.MODE:
        return deepspeed_start.attempts(partial(_start_rank_group, mode=mode))
    refusing = {"ddp": Ranks(2), "fsdp1": Ranks(2, "full")}
    own: dict[Capability, Attempt] = {}
    if mode in ("fsdp", "fsdp1"):
        for precision in MASTERED:
            own[Capability(f"precision.{precision.label}")] = partial(_keeps_masters, precision, mode)
    if mode in refusing:
        own[Capability.TWO_LOSSES] = partial(_two_losses, refusing[mode], mode)
    if mode == "fsdp1":
        own[Capability.MISSING_GRADIENTS] = partial(
            stays_without_gradient, partial(_start_rank_group, mode=mode), refusing[mode]
        )
    return own


def _keeps_masters(precision: Precision, mode: str) -> bool:
    """Returns whether shards stay float32 although the layers are gathered in another format."""
    run = _start_rank_group(sincos(4), Recipe(SGD(2.0**-10), precision, ranks=Ranks(2, "full")), mode=mode)
    run.update(window_across_ranks((sincos_batch(4),), 2))
    models, masters = run.all("parameters")[0], run.all("master_parameters")[0]
    return any(not np.array_equal(models[name], master) for name, master in masters.items())


def _two_losses(ranks: Ranks, mode: str) -> bool:
    recipe = Recipe(SGD(), separate_losses=True, ranks=ranks)
    batch = sincos_batch(4)
    run = _start_rank_group(sincos(4), recipe, mode=mode)
    return not any(update.skipped for update in run.update(window_across_ranks((batch,), 2)))


def meshes() -> RemoteMeshes:
    """Two ranks with DTensors by plans of `parallelize_module`, `fully_shard` over another mesh, and pipelines."""
    return RemoteMeshes(
        partial(worker_group_of, _MEMBER, 2, "cpu", "eager", _ENVIRONMENT), "frameworks.torch.distributed.sharding"
    )


@dataclass(frozen=True)
class Stack:
    """A library whose training loop a mode drives.

    Attributes:
        library: name of its distribution, as pip writes it.
        oldest: the oldest version that the mode can drive.
        path: the mode's framework class, "package.module:Class".
    """

    library: str
    oldest: str
    path: str

    def problem(self, mode: str) -> str:
        """The reason why the mode cannot run here, and what to do; "" if it can run."""
        remedy = f"run `conformance run --mode {mode} torch`, which installs it"
        try:
            here = version(self.library)
        except PackageNotFoundError:
            return f"torch's mode {mode!r} needs {self.library}, which is not installed: {remedy}"
        if Version(here) < Version(self.oldest):
            return f"torch's mode {mode!r}: got {self.library} {here}, want {self.oldest} or newer: {remedy}"
        return ""


STACKS: Mapping[str, Stack] = {
    "keras": Stack("keras", "3.10", "frameworks.torch.keras.framework:KerasOnTorch"),
    "fabric": Stack("lightning", "2.5", "frameworks.torch.stacks.fabric:FabricFramework"),
    "lightning": Stack("lightning", "2.5", "frameworks.torch.stacks.lightning:LightningFramework"),
    "accelerate": Stack("accelerate", "1.10", "frameworks.torch.stacks.accelerate:AccelerateFramework"),
    "trainer": Stack("transformers", "5.3", "frameworks.torch.stacks.trainer:TransformersFramework"),
    "trainer-plain": Stack("transformers", "5.3", "frameworks.torch.stacks.trainer:TransformersFramework"),
}
"""The libraries by mode."""


_LIBRARIES = MappingProxyType({library.MODE: library for library in (torchao_models, transformers_models)})
"""Classes of post-training quantization by mode."""


class TorchProcess(BaseFramework):
    """PyTorch in this process, on the CPU or an accelerator, one thread."""

    name: str = "torch"

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        super().__init__(device, mode)
        torch.set_num_threads(1)
        if self.device == "cuda":
            pin_kernels()

    def devices(self) -> tuple[str, ...]:
        return settings.available()

    def version(self) -> str:
        return str(torch.__version__)

    def environment(self) -> dict[str, str]:
        return read_environment(self.device)

    def measure_time(self, work: Callable[[], object]) -> int:
        """Nanoseconds between two events of the device, or on the host's clock if its module has no events."""
        if self.device == "cpu":
            return super().measure_time(work)
        module = settings.module(self.device)
        module.synchronize()
        if not hasattr(module, "Event"):
            return measure_elapsed(lambda: (work(), module.synchronize()))
        begin, end = (module.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        module.synchronize()
        return round(1e6 * begin.elapsed_time(end))

    def global_state(self) -> dict[str, str]:
        return read_settings()

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        write_settings(state)

    def conventions(self) -> Conventions:
        return conventions(self.mode)


class TorchFramework(TorchProcess):
    """PyTorch without a library on top of it, and the base of the modes with one.

    Mode "compile" compiles the forward passes and losses of trainers and the cases of `recompute`, and
    "compile-dynamic" does so for all sizes at once; `run_op` is eager in all modes. "ddp", "fsdp", "fsdp1" and
    "deepspeed" train every recipe with two ranks, "offload" keeps activations in files, "torchao" quantizes trained
    models by torchao, and "transformers" loads them in 8 bits. Modes of `STACKS` train by libraries on
    top of PyTorch, each with a framework class of its own.
    """

    ranks_of_modes = MappingProxyType(
        {
            "ddp": Ranks(2),
            "fsdp": Ranks(2, "full"),
            "fsdp1": Ranks(2, "full"),
            deepspeed_start.MODE: Ranks(2, "gradients"),
        }
    )
    offload_of_modes = MappingProxyType({"offload": Offload(("activations",), "disk")})
    modes: tuple[str, ...] = ("eager", *settings.MODES, *ranks_of_modes, *offload_of_modes, *_LIBRARIES, *STACKS)

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        super().__init__(device, mode)
        if self.mode == deepspeed_start.MODE:
            deepspeed_start.problem()  # compile now: it may take longer than the limit of a test

    def refusals(self) -> Mapping[Capability, str]:
        missing = {} if shipped.available() else {SHIPPED[part]: shipped.MISSING for part in shipped.PARTS}
        missing |= formats.find_refusals() if self.mode == "eager" else {}
        return refusals(self.device, self.mode) | missing

    def supported_capabilities(self) -> Collection[Capability]:
        qat = (Capability.QAT, Capability.CONVERT) if self.mode == "eager" and converts() else ()
        adapters = formats.CAPABILITIES if self.mode == "eager" else ()
        return (
            capabilities_of(self.mode, ranks=self.ranks() is not None)
            | casts_of(self.rule(NumberFormats))
            | quantizers_of(self.rule(Quantizers))
            | techniques_of(self.rule(PostTraining))
            | {*products(self.device), *qat, *adapters}
        )

    def attempts(self) -> Mapping[Capability, Attempt]:
        result = dict(attempts(self.device, self.mode)) | shipped_attempts(self.parts())
        own = optimizers.implementation_attempts(self.device, self._run)
        if self.mode == deepspeed_start.MODE:
            own = {capability: own[capability] for capability in own.keys() & self.refusals().keys()}
        result |= own
        if self.mode not in ("fsdp1", deepspeed_start.MODE):
            result[Capability.ADAM_8BIT] = partial(optimizers.keeps_codes, self.device)
        result |= formats.refused_attempts() if self.mode == "eager" else {}
        result[Capability.OFFLOAD_PARAMETERS] = parameters_leave
        if not self._compiles:
            result |= offload_attempts(self._run, (Offload(("activations",)), Offload(("activations",), "disk")))
        if self.mode in _LIBRARIES:
            result |= _LIBRARIES[self.mode].refused_attempts()
        if self.mode == torchao_models.MODE:
            result |= formats.attempts(self.device)
        if self.device != "cpu" or self._compiles:
            return result
        return with_ranks(result | own_attempts(self.mode), partial(rank_group, mode=self.mode), self.ranks())

    def parts(self) -> Mapping[Part, Callable[[], BaseShipped]]:
        if self.mode != "eager" and not self._compiles:
            return {}
        parts: dict[Part, Callable[[], BaseShipped]] = {
            part: partial(make, self.device, compiles=self._compiles) for part, make in shipped.PARTS.items()
        }
        parts["functions"] = partial(TorchFunctions, self.device, compiles=self._compiles)
        return parts if self._compiles else parts | {"optimizers": partial(TorchOptimizers, self.device)}

    @property
    def _compiles(self) -> bool:
        return self.mode in settings.MODES

    def rules(self) -> Mapping[type, Callable[[], Any]]:
        own = formats.rules(self.device) if self.mode == torchao_models.MODE else {}
        return own | {
            NumberFormats: partial(TorchFormats, self.device),
            Quantizers: partial(TorchQuantizers, self.device),
            PostTraining: self._post_training,
            QatRule: lambda: RULE,
            EightBitRule: optimizers.rule,
            LowRankAdapters: lambda: partial(formats.PeftNetwork, device=self.device),
            Meshes: meshes,
            Pipelines: meshes,
            ValueSaver: lambda: trainer.SAVER,
        }

    def _post_training(self) -> PostTraining:
        match self.mode:
            case torchao_models.MODE:
                return torchao_models.TorchaoPostTraining(self.device)
            case transformers_models.MODE:
                return transformers_models.TransformersPostTraining(self.device)
            case _:
                return TorchPostTraining(self.device)

    def recompute_variants(self) -> tuple[str, ...]:
        return tuple(VARIANTS)

    def function_ways(self) -> Mapping[str, FunctionFormat]:
        return WAYS

    def rank_group(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseRankGroup:
        self.require_recipe(recipe)
        optimizers.require(recipe, self.device)
        return rank_group(model, recipe, weights, mode=self.mode)

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseTrainer:
        self.require_recipe(recipe)
        if not is_flat(self.mode, recipe):
            self.require_clipping(recipe)
        optimizers.require(recipe, self.device)
        optimizers.require_implementation(model, recipe, self.device)
        ways.require(recipe)
        if recipe.ranks is None and recipe.precision.level == "O2":
            low = Capability(f"precision.{recipe.precision.label}")
            raise Unsupported(low, NO_MASTERS, attempts(self.device, self.mode)[low])
        if recipe.ranks is not None:
            recipe = recipe.replace(ways=recipe.ways_of(*LEVELS_OF).ways)
            return self.bind(RankGroupTrainer(rank_group(model, recipe, weights, mode=self.mode)))
        return self.bind(self._run(model, recipe, weights))

    def require_clipping(self, recipe: Recipe) -> None:
        """Refuses to clip scaled gradients that only the optimizer can unscale.

        Raises:
            Unsupported: CLIP.
        """
        if recipe.clip is not None and wants_fused(recipe):
            raise Unsupported(Capability.CLIP, NO_CLIPPING, partial(float16_clipped, recipe.optimizer, self.device))

    def _run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> TorchTrainer:
        kind = TorchTrainer if recipe.quantization is None else QatTrainer
        return kind(model, recipe, weights, self.device, self.mode)

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        if wide or low:
            self.require(Capability.AUTOCAST_LISTS)
        if precision.level == "O0":
            return torch.autocast(self.device, enabled=False)
        if precision.level != "O1":
            reason = f"torch.autocast is level O1: it has no scope of level {precision.level}"
            raise Unsupported(Capability.AUTOCAST_SCOPE, reason, partial(scope_of_everything, self.device))
        return torch.autocast(self.device, dtype=DTYPES[precision.format], enabled=enabled)

    def plateau(self, plateau: Plateau, metrics: Sequence[float], saved: int | None = None) -> tuple[float, ...]:
        self.require(Capability.PLATEAU)
        return plateau_rates(plateau, metrics, saved)

    def function_used(
        self, use: FunctionUse, inputs: tuple[Array, Array, Array], variant: str | None = None
    ) -> FunctionResult:
        self.require(Capability.FUNCTION_USES)
        return function_used(use, inputs, variant, self.device)

    def tf32(self, allowed: bool | None) -> AbstractContextManager[None]:
        self.require(Capability.TF32)
        return tf32_products(allowed)

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        result = OPERATIONS[op](*(to_tensor(array, self.device) for array in arrays))
        return OpResult(to_array(result), dtype_name(result.dtype))

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        return recompute(case, x, w, self.variant(variant), device=self.device, mode=self.mode)
