"""Capabilities, their declarations and refusals, and the capabilities that models and recipes need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from fixtures.model import Again, Model, UserFunction
from fixtures.optimizers import UNIVERSAL, Adam, Optimizer, option_capabilities
from fixtures.recipe import DynamicScaling, Float8, Offload, Precision, Qat, Ranks, Recipe, StaticScaling


class Capability(StrEnum):
    """Capabilities that a framework declares as supported or unsupported on a device, in a mode."""

    O1_FLOAT16 = "precision.O1-float16"
    O1_BFLOAT16 = "precision.O1-bfloat16"
    O2_FLOAT16 = "precision.O2-float16"
    O2_BFLOAT16 = "precision.O2-bfloat16"
    O3_FLOAT16 = "precision.O3-float16"
    O3_BFLOAT16 = "precision.O3-bfloat16"
    FLOAT64_HEADS = "precision.float64-heads"
    TF32 = "precision.tf32"  # a switch of TensorFloat-32 for float32 matrix products
    AUTOCAST_SCOPE = "autocast.scope"
    AUTOCAST_LISTS = "autocast.user-lists"
    OPERATIONS = "autocast.operations"  # every operation of the catalogue in every format
    DYNAMIC_SCALING = "scaling.dynamic"
    STATIC_SCALING = "scaling.static"
    SCALING_FACTORS = "scaling.factors"
    SCALING_DISABLED = "scaling.disabled"
    EXPLICIT_UNSCALE = "scaling.explicit-unscale"
    SECOND_UNSCALE = "scaling.second-unscale"  # a second unscaling of the same gradients is detected
    TWO_OPTIMIZERS = "scaling.two-optimizers"
    TWO_LOSSES = "scaling.two-losses"
    ACCUMULATION = "accumulation"
    PARTIAL_WINDOW = "accumulation.partial-window"
    RECOMPUTE = "recompute"
    RECOMPUTE_NESTED = "recompute.nested"
    RECOMPUTE_CASES = "recompute.cases"
    SEGMENT_CALLS = "recompute.segment-calls"
    GROUPS = "optimizer.groups"
    GROUP_RATES = "optimizer.group-rates"  # parameter groups with their own learning rate and weight decay
    CLIP = "optimizer.clip"
    SCHEDULE = "optimizer.schedule"
    PLATEAU = "optimizer.plateau"  # a schedule that follows a metric
    SCHEDULE_FREQUENCY = "optimizer.schedule-frequency"  # a schedule that steps after every n-th update
    MISSING_GRADIENTS = "optimizer.missing-gradients"
    AVERAGE = "optimizer.average"
    ADAM_8BIT = "optimizer.adam-8bit"  # moments as 8-bit codes, by blocks
    SINGLE = "optimizer.single"  # updates one parameter at a time
    FOREACH = "optimizer.foreach"  # updates lists of parameters at a time
    FUSED = "optimizer.fused"  # one kernel for the whole update
    CAPTURABLE = "optimizer.capturable"  # counters and rates on the device
    TENSOR_RATE = "optimizer.tensor-rate"  # the learning rate as a tensor
    STEP_HOOKS = "optimizer.step-hooks"  # hooks that the framework runs after an update
    NESTEROV = "optimizer.nesterov"
    DAMPENING = "optimizer.dampening"
    COUPLED_DECAY = "optimizer.coupled-decay"  # weight decay that is added to the gradient
    DECAY_EXCLUDED = "optimizer.decay-excluded"  # parameters that weight decay leaves out
    FROZEN = "optimizer.frozen"  # parameters that are not trained
    FREEZE = "optimizer.freeze"  # parameters that are frozen during a run
    AMSGRAD = "optimizer.amsgrad"
    MAXIMIZE = "optimizer.maximize"
    ADAGRAD = "optimizer.adagrad"
    RATE_DECAY = "optimizer.rate-decay"  # Adagrad's own decay of the rate
    RMSPROP = "optimizer.rmsprop"
    ADAFACTOR = "optimizer.adafactor"
    ABSOLUTE_RATE = "optimizer.absolute-rate"  # Adafactor's rate without a cap
    SMALLEST_FACTORED = "optimizer.smallest-factored"  # Adafactor's least side of a factored matrix
    MUON = "optimizer.muon"
    WIDTH_RATE = "optimizer.width-rate"  # Muon's rate by the ratio of a matrix' sides
    UNADJUSTED_RATE = "optimizer.unadjusted-rate"  # Muon's rate without an adjustment to the sides
    RANKS_REPLICATED = "ranks.replicated"
    RANKS_OPTIMIZER = "ranks.optimizer"
    RANKS_GRADIENTS = "ranks.gradients"
    RANKS_FULL = "ranks.full"
    RANKS_HYBRID = "ranks.hybrid"  # several replicas of what is sharded
    RANKS_LOW_REDUCTION = "ranks.low-reduction"  # gradients added up over ranks in a low format
    RANKS_EMPTY = "ranks.empty"  # a rank whose part of a micro-batch has no samples
    RANKS_COLLECTIVES = "ranks.collectives"  # the number of collective operations can be read
    RANKS_LOST = "ranks.lost"  # one rank can stop while the others go on
    RANKS_RESHAPE = "ranks.reshape"  # a saved run is restored by another number of ranks
    RANKS_TENSOR = "ranks.tensor"  # a mesh of ranks divides the layers' parameters
    RANKS_SEQUENCE = "ranks.sequence"  # such a mesh also divides the positions
    RANKS_PIPELINE = "ranks.pipeline"  # a schedule of micro-batches over stages of the model
    OFFLOAD_ACTIVATIONS = "offload.activations"
    OFFLOAD_PARAMETERS = "offload.parameters"
    OFFLOAD_OPTIMIZER = "offload.optimizer"
    OFFLOAD_HOST = "offload.host"
    OFFLOAD_DISK = "offload.disk"
    FLOAT8_E4M3FN = "formats.float8_e4m3fn"
    FLOAT8_E5M2 = "formats.float8_e5m2"
    FLOAT8_E4M3FNUZ = "formats.float8_e4m3fnuz"
    FLOAT8_E5M2FNUZ = "formats.float8_e5m2fnuz"
    FLOAT8_E4M3 = "formats.float8_e4m3"
    FLOAT8_E3M4 = "formats.float8_e3m4"
    FLOAT8_E8M0FNU = "formats.float8_e8m0fnu"
    INTEGER_CASTS = "formats.int8"
    FLOAT8_PRODUCTS = "formats.float8-products"
    DELAYED_SCALING = "formats.delayed-scaling"
    FLOAT8_TRAINING = "formats.float8-training"  # dense layers multiply in 8-bit formats with delayed scales
    DYNAMIC_SCALES = "formats.dynamic-scales"  # dense layers multiply in 8-bit formats with scales of the present call
    BLOCK_SCALES = "formats.block-scales"  # casts of blocks of values that share a scale
    STOCHASTIC_ROUNDING = "formats.stochastic-rounding"
    INT4_PACKING = "formats.int4-packing"
    INTEGER_PRODUCTS = "quantization.integer-products"
    INT8_TENSOR = "quantization.int8-tensor"  # one symmetric range of a matrix
    INT8_ROW = "quantization.int8-row"  # a symmetric range of each row
    INT8_COLUMN = "quantization.int8-column"  # a symmetric range of each column
    UINT8_TENSOR = "quantization.uint8-tensor"  # one range with a zero point
    INT4_GROUP = "quantization.int4-group"  # a 4-bit range of each group of a row
    FAKE_INT8_TENSOR = "quantization.fake-int8-tensor"
    FAKE_INT8_COLUMN = "quantization.fake-int8-column"
    FAKE_UINT8_TENSOR = "quantization.fake-uint8-tensor"
    FAKE_INT4_TENSOR = "quantization.fake-int4-tensor"
    DYNAMIC_INT8 = "quantization.dynamic-int8"  # trained models: the range of inputs is that of each call
    STATIC_INT8 = "quantization.static-int8"  # trained models: the range of inputs is calibrated
    WEIGHT_INT8 = "quantization.weight-int8"  # trained models: only weights are quantized, to int8
    WEIGHT_INT4 = "quantization.weight-int4"  # trained models: only weights are quantized, to int4
    LOAD_INT8 = "quantization.load-int8"  # trained models loaded as int8, with outliers in floating point
    QAT = "quantization.aware"  # training with fake quantization
    CONVERT = "quantization.convert"  # a model trained by QAT is converted to integer codes
    LAYER_REUSE = "model.layer-reuse"  # a layer that is called twice in a forward pass
    TIED_WEIGHTS = "model.tied-weights"  # an embedding's table that is also the weight of a head
    USER_FUNCTION = "model.user-function"  # an operation whose backward pass the user wrote
    FUNCTION_USES = "model.function-uses"  # such an operation with several inputs, some of which need no gradient
    SHIPPED_OPERATIONS = "model.shipped-operations"  # the framework's operations, each with examples
    SHIPPED_LAYERS = "model.shipped-layers"  # the framework's layers, each with examples
    CONTROL_FLOW = "model.control-flow"  # user functions with branches, loops, views and in-place updates
    SHIPPED_OPTIMIZERS = "optimizer.shipped"  # the optimizers of the framework, each with sets of options
    ADAPTERS = "adapters.low-rank"  # low-rank adapters of a frozen float32 network
    ADAPTER_ROOT = "adapters.root-scale"  # a factor of alpha / √rank
    ADAPTER_LOW_BASE = "adapters.low-base"  # adapters of a network in float16 or bfloat16
    ADAPTER_INT8 = "adapters.int8-base"
    ADAPTER_INT4 = "adapters.int4-base"
    ADAPTER_NF4 = "adapters.nf4-base"
    ADAPTER_FP4 = "adapters.fp4-base"
    ADAPTER_NESTED = "adapters.nested-base"  # nf4 with quantized scales
    ADAPTER_FLOAT_INPUTS = "adapters.float-inputs"  # layers with a quantized base do not quantize their inputs
    ADAPTER_MERGE = "adapters.merge"
    ADAPTER_COPIES = "adapters.copies"  # layers that train in full as a copy beside the original
    LATE_ADAPTERS = "adapters.late"  # adapters are switched on in a network that has trained
    FEED = "trainer.feed"
    CHECKPOINT = "trainer.checkpoint"
    SAVED_BYTES = "trainer.saved-bytes"
    PEAK_BYTES = "trainer.peak-bytes"
    STEP_HOOK = "trainer.step-hook"  # the training loop calls a user hook before each optimizer step
    MANUAL_STEP = "trainer.manual-step"  # a user's own step inside the library's loop, with the library's clipping
    TRACE = "trainer.trace"  # outputs and gradients of every layer
    LIBRARY_REQUESTS = "autocast.library-requests"  # the effect of a precision request to a library
    LOADED_CHECKPOINT = "precision.loaded-checkpoint"  # a model from a library's checkpoint loader is trained
    LOAD_ORDER = "trainer.load-order"  # parts of a run are made and loaded in the user's order
    LIVE_STATE = "trainer.live-state"  # a run takes the state of another run in the process
    DATA_POSITION = "trainer.data-position"  # a run resumes in the middle of a library's data loader
    SAVED_VALUES = "trainer.saved-values"  # values of several types, saved without a model
    BACKGROUND_SAVES = "trainer.background-saves"  # saves that go on while the run trains
    PLAIN_LOOP = "trainer.plain-loop"  # the same run without the library that trains it

    @classmethod
    def of(cls, precision: Precision) -> Capability | None:
        """The capability that a precision needs, None for float32."""
        return None if precision.level == "O0" else cls(f"precision.{precision.label}")

    @classmethod
    def of_ranks(cls, ranks: Ranks) -> tuple[Capability, ...]:
        """The capabilities that ranks need."""
        asked = [cls(f"ranks.{ranks.level}")]
        if ranks.replicas > 1 and ranks.level != "replicated":
            asked.append(cls.RANKS_HYBRID)
        if ranks.reduce != "float32":
            asked.append(cls.RANKS_LOW_REDUCTION)
        return tuple(asked)

    @classmethod
    def of_offload(cls, offload: Offload) -> tuple[Capability, ...]:
        """The capabilities that an offload needs, for its kinds of state and its target."""
        return (*(cls(f"offload.{kind}") for kind in offload.what), cls(f"offload.{offload.to}"))

    @classmethod
    def of_optimizers(cls, optimizers: Iterable[type[Optimizer]]) -> frozenset[Capability]:
        """The capabilities of optimizers, without their options; one of every framework has none."""
        return frozenset(cls(f"optimizer.{own.__name__.lower()}") for own in optimizers if own not in UNIVERSAL)


def model_needs(model: Model) -> tuple[Capability, ...]:
    """The capabilities that a model's layers need."""
    conditions = {
        Capability.LAYER_REUSE: any(isinstance(layer, Again) for layer in model.layers),
        Capability.TIED_WEIGHTS: any(head.tied is not None for head in model.heads.heads),
        Capability.USER_FUNCTION: any(isinstance(layer, UserFunction) for layer in model.layers),
    }
    return tuple(capability for capability, wanted in conditions.items() if wanted)


Attempt = Callable[[], bool]
"""An attempt: the framework's own call without the adapter's guards; True if the technique took effect."""


class Unsupported(Exception):
    """A framework refuses a request, since it does not support `capability` here; `reason` is one sentence.

    If the capability is supported and only a combination is refused, the refusal has its own `attempt`.
    """

    def __init__(self, capability: Capability, reason: str, attempt: Attempt | None = None) -> None:
        super().__init__(f"{capability}: {reason}")
        self.capability = capability
        self.reason = reason
        self.attempt = attempt

    def __reduce__(self) -> tuple[type[Unsupported], tuple[Capability, str, Attempt | None]]:
        return type(self), (self.capability, self.reason, self.attempt)

    @classmethod
    def from_declaration(
        cls, capability: Capability, declaration: Declaration, attempt: Attempt | None = None
    ) -> Unsupported:
        """The refusal of a capability, with the reason that its declaration gives."""
        return cls(capability, declaration.reason or NOT_OFFERED.reason, attempt)


class MissingDevice(Exception):
    """The requested device is not available."""


@dataclass(frozen=True)
class Declaration:
    """The declaration of a capability as supported, or the reason why it is not."""

    supported: bool
    reason: str = ""


SUPPORTED = Declaration(True)

NOT_OFFERED = Declaration(False, "this adapter does not offer it")
"""The declaration of a capability that an adapter does not mention and has no attempt for."""


def of_optimizer(recipe: Recipe) -> tuple[Capability, ...]:
    """The capabilities that a recipe's optimizer needs: its implementation, its class and its options."""
    optimizer, implementation = recipe.optimizer, recipe.implementation
    conditions = {
        Capability.DECAY_EXCLUDED: bool(recipe.undecayed),
        Capability.FROZEN: bool(recipe.frozen),
        Capability.GROUP_RATES: recipe.second_rate is not None or recipe.second_decay is not None,
        Capability.TENSOR_RATE: recipe.tensor_rate,
    }
    return (
        *(() if implementation == "default" else (Capability(f"optimizer.{implementation}"),)),
        *Capability.of_optimizers((type(optimizer),)),
        *(Capability(f"optimizer.{name}") for name in option_capabilities(optimizer)),
        *(capability for capability, wanted in conditions.items() if wanted),
    )


def needs(recipe: Recipe) -> tuple[Capability, ...]:
    """The capabilities that a recipe needs."""
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
        Capability.QAT: isinstance(recipe.quantization, Qat),
        Capability.FLOAT8_TRAINING: isinstance(recipe.quantization, Float8),
        Capability.ADAM_8BIT: isinstance(recipe.optimizer, Adam) and recipe.optimizer.state_bits == 8,
    }
    asked += [capability for capability, wanted in conditions.items() if wanted]
    asked += of_optimizer(recipe)
    asked += () if recipe.ranks is None else Capability.of_ranks(recipe.ranks)
    asked += () if recipe.offload is None else Capability.of_offload(recipe.offload)
    return tuple(capability for capability in asked if capability is not None)
