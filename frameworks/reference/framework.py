"""The reference framework: NumPy in float64, autograd's reverse mode, low precision by rounding every result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.model import FunctionUse, Model
from fixtures.models import exact_linear, scalar
from fixtures.recipe import Adam, FormatName, Offload, Precision, Ranks, Recipe
from fixtures.schedules import Plateau, PlateauRule
from frameworks.base import BaseFramework, BaseShipped, RankGroupTrainer, ranks_of
from frameworks.contract import (
    Attempt,
    BlockScales,
    Capability,
    Conventions,
    DelayedProducts,
    DynamicProducts,
    EightBitRule,
    Float8Rule,
    FunctionFormat,
    FunctionResult,
    LoadedRun,
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
    StochasticRounding,
    Trainer,
    Unsupported,
    ValueSaver,
    needs,
)
from frameworks.reference import declarations
from frameworks.reference.core import calls, scope
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.calls import ReferenceFunction
from frameworks.reference.core.rounding import Nearest, Rounding
from frameworks.reference.declarations import CONVENTIONS, LACKING, LACKING_IN_RANKS, REFUSALS, VARIANTS, WHOLE_BLOCKS
from frameworks.reference.distributed import ReferenceRankGroup
from frameworks.reference.low_rank import ReferenceAdaptedNetwork
from frameworks.reference.meshes import ReferenceMeshes, ReferencePipelines
from frameworks.reference.quantization.float8 import ReferenceDelayedProduct
from frameworks.reference.quantization.formats import ReferenceFormats, ReferenceQuantizers
from frameworks.reference.quantization.low_precision import (
    ReferenceBlockScales,
    ReferenceDynamicProducts,
    ReferenceStochasticRounding,
)
from frameworks.reference.quantization.post_training import ReferencePostTraining, ReferenceQuantizedModel
from frameworks.reference.shipped import ReferenceFunctions, ReferenceOptimizers, ReferenceShipped
from frameworks.reference.training.background import SAVER, ReferenceSeries
from frameworks.reference.training.optimizers import AdamRule
from frameworks.reference.training.trainer import ReferenceLoop, ReferenceTrainer


class ReferenceFramework(BaseFramework):
    """The reference. Its class attributes are the classes that it instantiates; a fault replaces one of them.

    Args:
        device: "auto" or "cpu".
        mode: "emulated"; "ranks": two ranks train every recipe; "offload": all state is offloaded to the host.
        conventions: conventions of the framework that it stands in for; None for the reference's own.
        rounding: rounds results to their formats; None for rounding to nearest.
    """

    name = "reference"
    ranks_of_modes = MappingProxyType({"ranks": Ranks(2)})
    offload_of_modes = MappingProxyType({"offload": Offload(("activations", "parameters", "optimizer"))})
    modes: tuple[str, ...] = ("emulated", *ranks_of_modes, *offload_of_modes)
    trainer_class: type[ReferenceTrainer] = ReferenceTrainer
    rank_group_class: type[ReferenceRankGroup] = ReferenceRankGroup
    operations_class: type[Operations] = Operations
    formats_class: type[ReferenceFormats] = ReferenceFormats
    quantizers_class: type[ReferenceQuantizers] = ReferenceQuantizers
    delayed_class: type[ReferenceDelayedProduct] = ReferenceDelayedProduct
    block_scales_class: type[ReferenceBlockScales] = ReferenceBlockScales
    dynamic_products_class: type[ReferenceDynamicProducts] = ReferenceDynamicProducts
    stochastic_rounding_class: type[ReferenceStochasticRounding] = ReferenceStochasticRounding
    function_class: type[ReferenceFunction] = ReferenceFunction
    loop_class: type[ReferenceLoop] = ReferenceLoop
    plateau_class: type[PlateauRule] = PlateauRule
    shipped_class: type[ReferenceShipped] = ReferenceShipped
    functions_class: type[ReferenceFunctions] = ReferenceFunctions
    shipped_optimizers_class: type[ReferenceOptimizers] = ReferenceOptimizers
    meshes_class: type[ReferenceMeshes] = ReferenceMeshes
    pipelines_class: type[ReferencePipelines] = ReferencePipelines
    series_class: type[ReferenceSeries] = ReferenceSeries
    quantized_model_class: type[ReferenceQuantizedModel] = ReferenceQuantizedModel
    adapted_class: type[ReferenceAdaptedNetwork] = ReferenceAdaptedNetwork

    def __init__(
        self,
        device: str = "auto",
        mode: str | None = None,
        *,
        conventions: Conventions | None = None,
        rounding: Rounding | None = None,
    ) -> None:
        super().__init__(device, mode)
        self._conventions = conventions or CONVENTIONS
        self.rounding: Rounding = rounding or Nearest()

    def devices(self) -> tuple[str, ...]:
        return ("cpu",)

    def version(self) -> str:
        return "1"

    def environment(self) -> dict[str, str]:
        own = self._conventions == CONVENTIONS
        return declarations.read_environment() | {
            "conventions": "own" if own else "given",
            "rounding": type(self.rounding).__name__,
        }

    def refusals(self) -> Mapping[Capability, str]:
        return REFUSALS

    def conventions(self) -> Conventions:
        return self._conventions

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        self.require_recipe(recipe)
        if self._trains_by_ranks(recipe):
            return self.bind(RankGroupTrainer(self.rank_group(model, recipe, weights)))
        return self.run(model, recipe, weights)

    def _trains_by_ranks(self, recipe: Recipe) -> bool:
        return recipe.ranks is not None and self._conventions.batch_statistics == "rank"

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        """A run without ranks, even if the recipe has ranks."""
        self.require_recipe(recipe)
        return self.bind(self.trainer_class(model, recipe, self._conventions, self._operations(), weights))

    def plain_trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        self.require_recipe(recipe)
        if self._trains_by_ranks(recipe):
            return self.bind(RankGroupTrainer(self._rank_group(model, recipe, weights, plain=True)))
        return self.bind(ReferenceTrainer(model, recipe, self._conventions, self._operations(), weights))

    def rank_group(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None
    ) -> ReferenceRankGroup:
        self.require_recipe(recipe)
        if ranks_of(recipe).level != "replicated" and Capability.ADAM_8BIT in needs(recipe):
            raise Unsupported(Capability.ADAM_8BIT, WHOLE_BLOCKS, partial(self._encodes_shards, recipe))
        return self._rank_group(model, recipe, weights)

    def _rank_group(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None, *, plain: bool = False
    ) -> ReferenceRankGroup:
        initial_weights = model.weights(recipe.seed) if weights is None else weights
        group, trainer = (
            (ReferenceRankGroup, ReferenceTrainer) if plain else (self.rank_group_class, self.trainer_class)
        )
        ranks = group(model, recipe, self._conventions, self._operations(), initial_weights, trainer)
        for rank_trainer in ranks.trainers:
            self.bind(rank_trainer)
        return ranks

    def _operations(self) -> Operations:
        return self.operations_class(self.rounding, self._conventions.variance)

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        if not enabled:
            return scope.open_scope(scope.Scope())
        return scope.open_scope(scope.Scope(precision, frozenset(wide), frozenset(low)))

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        return calls.run_op(self.operations_class(self.rounding), op, *arrays)

    def parts(self) -> Mapping[Part, Callable[[], BaseShipped]]:
        return {
            "operations": lambda: self.shipped_class(self._operations()),
            "optimizers": lambda: self.shipped_optimizers_class(self.rounding, self._conventions),
            "functions": lambda: self.functions_class(self._operations()),
        }

    def rules(self) -> Mapping[type, Callable[[], Any]]:
        return {
            NumberFormats: self.formats_class,
            Quantizers: self.quantizers_class,
            BlockScales: self.block_scales_class,
            DynamicProducts: self.dynamic_products_class,
            StochasticRounding: self.stochastic_rounding_class,
            PostTraining: partial(ReferencePostTraining, self.quantized_model_class),
            QatRule: lambda: self.trainer_class.qat_class.rule,
            Float8Rule: lambda: self.trainer_class.float8_class.rule,
            DelayedProducts: lambda: self._delayed_product,
            EightBitRule: self._eight_bit_rule,
            LowRankAdapters: lambda: partial(self.adapted_class, conventions=self._conventions),
            Meshes: self.meshes_class,
            Pipelines: self.pipelines_class,
            ValueSaver: lambda: replace(SAVER, series=self.series_class),
        }

    def _delayed_product(self, kernel: Array, *, history: int, accumulation: int = 1) -> ReferenceDelayedProduct:
        return self.delayed_class(kernel, history)

    def _eight_bit_rule(self) -> EightBitRule:
        state = self.trainer_class.eight_bit_class(Adam(state_bits=8))
        first, second = AdamRule.slots(state.optimizer)
        return EightBitRule(first, second, state.values(first), state.values(second))

    def count_schedule_steps(self, *, frequency: int, accumulation: int, epochs: Sequence[int]) -> tuple[int, ...]:
        return self.loop_class(self.run).count_schedule_steps(frequency, accumulation, epochs)

    def plateau(self, plateau: Plateau, metrics: Sequence[float], saved: int | None = None) -> tuple[float, ...]:
        own = self._conventions
        make = partial(self.plateau_class, plateau, waits=own.plateau_waits, signed=own.plateau_signed)
        rule, rates = make(), list[float]()
        for index, metric in enumerate(metrics):
            if index == saved:
                state, rule = rule.state(), make()
                rule.load(state)
            rates.append(rule.take(metric))
        return tuple(rates)

    def loaded_run(self, saved: FormatName, updates: int, rate: float) -> LoadedRun:
        return self.loop_class(self.run).load_and_train(saved, updates, rate)

    def clip_in_manual_step(self, gradient: Array, *, limit: float, scale: float) -> Array:
        return self.loop_class(self.run).clip(gradient, limit, scale)

    def gradient_in_hook(self, gradient: Array, *, scale: float, fused: bool) -> Array:
        return self.loop_class(self.run).run_hook(gradient, scale)

    def recompute_variants(self) -> tuple[str, ...]:
        return VARIANTS

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        self.variant(variant)
        return calls.recompute_product(self.operations_class(self.rounding), case, x, w)

    def function_ways(self) -> Mapping[str, FunctionFormat]:
        return {"primitive": "input"}

    def function_used(
        self, use: FunctionUse, inputs: tuple[Array, Array, Array], variant: str | None = None
    ) -> FunctionResult:
        return self.function_class().run_uses(use, inputs, variant)

    def supported_capabilities(self) -> Collection[Capability]:
        return frozenset(Capability) - LACKING - (LACKING_IN_RANKS if self.ranks() is not None else frozenset())

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {Capability.PEAK_BYTES: self._has_a_peak, Capability.TF32: self._rounds_operands}

    def _has_a_peak(self) -> bool:
        return self.run(scalar(), Recipe()).peak_bytes() > 0

    def _rounds_operands(self) -> bool:
        """Returns whether a float32 product rounds a factor near 1 to 1, as TensorFloat-32 does."""
        factor = np.full((1, 1), 1.0 + 2.0**-12, np.float32)
        with self.tf32(True):
            return bool(self.run_op("matmul", factor, np.ones((1, 1), np.float32)).value == 1.0)

    def _encodes_shards(self, recipe: Recipe) -> bool:
        """Returns whether ranks with sharded 8-bit moments equal a run without ranks after an update."""
        model = exact_linear(1, 4224)
        shapes = model.parameter_shapes()
        gradients = {name: -np.linspace(1.0, 2.0, int(np.prod(shape))).reshape(shape) for name, shape in shapes.items()}
        ranks, alone = self._rank_group(model, recipe), self.run(model, Recipe(Adam(state_bits=8)))
        ranks.apply_gradients([[gradients]] * ranks.count)
        alone.apply_gradients(gradients)
        expected = alone.state()
        return all(np.array_equal(state[name], expected[name]) for state in ranks.states() for name in expected)

    def global_state(self) -> dict[str, str]:
        return declarations.read_settings()

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        declarations.write_settings(state)
