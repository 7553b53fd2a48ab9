"""PyTorch as a framework of the suite."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from fixtures.arrays import Array
from fixtures.model import FunctionUse, Model
from fixtures.recipe import LEVELS_OF, Offload, Precision, Ranks, Recipe
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
    shipped_attempts,
    techniques_of,
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
)
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
from frameworks.torch.launch import is_flat, meshes, own_attempts, rank_group
from frameworks.torch.libraries import STACKS
from frameworks.torch.probes import attempts, float16_clipped, scope_of_everything
from frameworks.torch.quantization import formats, low_rank, torchao_models, transformers_models
from frameworks.torch.quantization.formats import TorchFormats, TorchQuantizers, products
from frameworks.torch.quantization.post_training import RULE, QatTrainer, TorchPostTraining, converts
from frameworks.torch.shipped import TorchFunctions, TorchOptimizers
from frameworks.torch.training import background, optimizers
from frameworks.torch.training.optimizers import NO_CLIPPING, wants_fused
from frameworks.torch.training.trainer import TorchTrainer

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
        missing |= low_rank.find_refusals() if self.mode == "eager" else {}
        return refusals(self.device, self.mode) | missing

    def supported_capabilities(self) -> Collection[Capability]:
        qat = (Capability.QAT, Capability.CONVERT) if self.mode == "eager" and converts() else ()
        adapters = low_rank.CAPABILITIES if self.mode == "eager" else ()
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
        result |= low_rank.refused_attempts() if self.mode == "eager" else {}
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
            LowRankAdapters: lambda: partial(low_rank.PeftNetwork, device=self.device),
            Meshes: meshes,
            Pipelines: meshes,
            ValueSaver: lambda: background.SAVER,
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
