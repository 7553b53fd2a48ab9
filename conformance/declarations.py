"""Comparison of an adapter's declared capabilities with what the framework does, by attempts and by requests.

A request asks the adapter for one capability. The base classes refuse every capability that an adapter does not
implement, so a request succeeds only if it does.
"""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from conformance.checks.evidence import Misdeclared, Verdict
from conformance.checks.subject import Subject
from conformance.techniques import load_techniques, low_rank
from fixtures.data import exact_batch
from fixtures.model import FunctionUse
from fixtures.models import exact_linear, exact_stack, make_reused_dense, sincos, tied_embedding, user_function
from fixtures.optimizers import OPTIMIZERS, SGD, Adafactor, Adagrad, Adam, AdamW, Muon, Optimizer
from fixtures.recipe import (
    BFLOAT16,
    DynamicScaling,
    Offload,
    Precision,
    Qat,
    Ranks,
    Recipe,
    Recompute,
    StaticScaling,
    Steps,
)
from fixtures.schedules import Plateau
from frameworks.base import window_across_ranks
from frameworks.contract import (
    SHIPPED,
    AdaptedNetwork,
    BlockScales,
    Capability,
    DelayedProducts,
    DynamicProducts,
    Framework,
    LowRank,
    LowRankAdapters,
    Meshes,
    NumberFormats,
    Pipelines,
    PostTraining,
    Quantizers,
    RankGroup,
    StochasticRounding,
    Trainer,
    Unsupported,
    ValueSaver,
    model_needs,
    needs,
)
from frameworks.operations import CATALOGUE

PRECISIONS = tuple(capability for capability in Capability if capability.startswith("precision.O"))
REQUESTS = (*PRECISIONS, Capability.AUTOCAST_SCOPE, Capability.AUTOCAST_LISTS, Capability.DYNAMIC_SCALING)
"""Capabilities that a request for mixed precision may need."""
OTHERS = tuple(capability for capability in Capability if capability not in REQUESTS)

_WEIGHT = ("0.weight",)
_OPTIMIZERS: tuple[Optimizer, ...] = (
    SGD(0.5, 0.5, nesterov=True),
    SGD(0.5, 0.5, dampening=0.5),
    SGD(0.5, weight_decay=0.5),
    SGD(0.5, maximize=True),
    Adam(amsgrad=True),
    *(optimizer() for optimizer in OPTIMIZERS),
    Adagrad(rate_decay=0.5),
    Adafactor(relative_step=False),
    Adafactor(smallest=9),
    Muon(adjustment="width"),
    Muon(adjustment="none"),
)
_RECIPES = (
    *(Recipe(optimizer) for optimizer in _OPTIMIZERS),
    *(Recipe(precision=Precision(level, low)) for level in ("O1", "O2", "O3") for low in ("float16", "bfloat16")),
    *(Recipe(scaling=scaling) for scaling in (DynamicScaling(), DynamicScaling(enabled=False), StaticScaling(8.0))),
    *(Recipe(ranks=Ranks(2, level)) for level in ("replicated", "optimizer", "gradients", "full")),
    Recipe(ranks=Ranks(4, "full", replicas=2)),
    Recipe(ranks=Ranks(2, reduce="bfloat16")),
    *(Recipe(offload=Offload((kind,), to)) for kind in ("activations", "optimizer") for to in ("host", "disk")),
    Recipe(offload=Offload(("parameters", "optimizer"))),
    Recipe(accumulation=2),
    Recipe(recompute=Recompute(1)),
    Recipe(recompute=Recompute(1, depth=2)),
    Recipe(clip=1.0),
    Recipe(schedule=Steps((1,), (1.0, 0.5))),
    Recipe(groups=2),
    Recipe(groups=2, second_rate=0.5),
    Recipe(optimizers=2),
    Recipe(separate_losses=True),
    Recipe(average=0.5),
    Recipe(AdamW(), undecayed=_WEIGHT),
    Recipe(frozen=_WEIGHT),
    *(Recipe(implementation=name) for name in ("single", "foreach", "fused", "capturable")),
    Recipe(tensor_rate=True),
    *chain.from_iterable(technique.recipes for technique in load_techniques()),
)
"""A recipe for each capability that a recipe asks for."""
_MODELS = (make_reused_dense(), tied_embedding(), user_function())
_BATCH = exact_batch()
_STEP = Recipe(SGD(0.5))
_SCALED = Recipe(SGD(0.5), scaling=DynamicScaling(1024.0))
_ONE = np.ones(1, np.float32)
_SQUARE = np.ones((2, 2), np.float32)


def _ones(run: Trainer) -> dict[str, np.ndarray]:
    return {name: np.ones_like(array) for name, array in run.parameters().items()}


def _feed(recipe: Recipe, framework: Framework, *, calls: int | None = None, missing: bool = False) -> None:
    run = framework.trainer(exact_linear(), recipe)
    gradients: dict[str, np.ndarray | None] = {**_ones(run)}
    if missing:
        gradients[next(iter(gradients))] = None
    run.apply_gradients(gradients, unscale_calls=calls)


def _unscale_twice(framework: Framework) -> None:
    with suppress(RuntimeError):  # the framework may report the second unscale call
        _feed(_SCALED, framework, calls=2)


def _end_early(framework: Framework) -> None:
    run = framework.trainer(exact_linear(), _STEP.replace(accumulation=4))
    run.accumulate(_BATCH, _BATCH.items)
    run.apply()


def _of_run(call: Callable[[Trainer], object], recipe: Recipe = _STEP) -> Callable[[Framework], object]:
    return lambda framework: call(framework.trainer(exact_stack(), recipe))


def _resume(restore: Callable[[Trainer, Path], object], framework: Framework) -> None:
    run, other = (framework.trainer(exact_stack(), _STEP) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        restore(other, Path(folder))


def _take(framework: Framework) -> None:
    run, other = (framework.trainer(exact_stack(), _STEP) for _ in range(2))
    run.take(other)


def _convert(framework: Framework) -> None:
    run = framework.trainer(exact_stack(), Recipe(SGD(0.5), quantization=Qat()))
    run.update((_BATCH,))
    run.convert()


def _of_ranks(call: Callable[[RankGroup], object]) -> Callable[[Framework], object]:
    return lambda framework: call(framework.rank_group(exact_linear(), _STEP.replace(ranks=Ranks(2))))


def _lose(group: RankGroup) -> None:
    try:
        group.fail_rank(window_across_ranks((_BATCH,), 2), 1, "raises")
    except Unsupported:
        raise
    except Exception:  # any other exception is that of the failing rank, which is no refusal
        return


def _reshape(framework: Framework) -> None:
    run, other = (framework.rank_group(exact_linear(), _STEP.replace(ranks=Ranks(count))) for count in (2, 4))
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        other.restore(Path(folder))


def _enter(scope: AbstractContextManager[None]) -> None:
    with scope:
        """Entering is enough: a scope may refuse only then."""


def _pack(framework: Framework) -> None:
    framework.rule(NumberFormats).pack(np.zeros((2, 4), np.int8), 1)


def _multiply_integers(framework: Framework) -> None:
    framework.rule(NumberFormats).integer_product(np.ones((16, 16), np.int8), np.ones((16, 16), np.int8))


def _multiply_float8(framework: Framework) -> None:
    formats = framework.rule(NumberFormats)
    codes = formats.encode(np.ones((16, 16), np.float32), "float8_e4m3fn")
    formats.float8_product(codes, codes, ("float8_e4m3fn", "float8_e4m3fn"))


def _adapt(
    call: Callable[[AdaptedNetwork], object] = lambda network: network, *, late: bool = False, **options: Any
) -> Callable[[Framework], object]:
    def request_adapters(framework: Framework) -> object:
        make = framework.rule(LowRankAdapters)
        return call(make(low_rank.weights(low_rank.CODED), LowRank(targets=("0",), **options), _STEP, late=late))

    return request_adapters


_CALLS: Mapping[Capability, Callable[[Framework], object]] = {
    **{capability: _adapt(base=base) for base, capability in low_rank.BASES.items()},
    Capability.ADAPTERS: _adapt(),
    Capability.ADAPTER_ROOT: _adapt(root=True),
    Capability.ADAPTER_FLOAT_INPUTS: _adapt(lambda network: network.weight("0"), base="int8"),
    Capability.ADAPTER_MERGE: _adapt(lambda network: network.merge()),
    Capability.ADAPTER_COPIES: _adapt(lambda network: network.predict_base(np.ones((1, 64), np.float32))),
    Capability.LATE_ADAPTERS: _adapt(lambda network: network.switch_on(), late=True),
    Capability.FLOAT64_HEADS: lambda f: f.trainer(sincos(4), Recipe()),
    Capability.AUTOCAST_SCOPE: lambda f: _enter(f.autocast(BFLOAT16)),
    Capability.AUTOCAST_LISTS: lambda f: _enter(f.autocast(BFLOAT16, low=("softmax",))),
    Capability.TF32: lambda f: _enter(f.tf32(None)),
    Capability.OPERATIONS: lambda f: f.run_op("matmul", *CATALOGUE["matmul"]()),
    Capability.SCALING_FACTORS: partial(
        _feed, Recipe(SGD(0.5), scaling=DynamicScaling(1024.0, growth=4.0, backoff=0.25, interval=1))
    ),
    Capability.EXPLICIT_UNSCALE: partial(_feed, _SCALED, calls=1),
    Capability.SECOND_UNSCALE: _unscale_twice,
    Capability.PARTIAL_WINDOW: _end_early,
    Capability.RECOMPUTE_CASES: lambda f: f.recompute("positional", _SQUARE, _SQUARE),
    Capability.SEGMENT_CALLS: _of_run(lambda run: run.segment_calls(), _STEP.replace(recompute=Recompute(1))),
    Capability.PLATEAU: lambda f: f.plateau(Plateau(), (1.0, 1.0)),
    Capability.SCHEDULE_FREQUENCY: lambda f: f.count_schedule_steps(frequency=2, accumulation=1, epochs=(3,)),
    Capability.MISSING_GRADIENTS: partial(_feed, _STEP, missing=True),
    Capability.STEP_HOOKS: _of_run(lambda run: run.hook_calls()),
    Capability.FREEZE: _of_run(lambda run: run.freeze(())),
    Capability.RANKS_EMPTY: _of_ranks(lambda group: group.update(window_across_ranks((exact_batch(1),), 2))),
    Capability.RANKS_COLLECTIVES: _of_ranks(lambda group: group.collectives()),
    Capability.RANKS_LOST: _of_ranks(_lose),
    Capability.RANKS_RESHAPE: _reshape,
    Capability.RANKS_TENSOR: lambda f: f.rule(Meshes),
    Capability.RANKS_SEQUENCE: lambda f: f.rule(Meshes),
    Capability.RANKS_PIPELINE: lambda f: f.rule(Pipelines),
    Capability.FLOAT8_PRODUCTS: _multiply_float8,
    Capability.INT4_PACKING: _pack,
    Capability.INTEGER_PRODUCTS: _multiply_integers,
    Capability.CONVERT: _convert,
    Capability.FUNCTION_USES: lambda f: f.function_used(FunctionUse(), (_ONE, _ONE, _ONE)),
    Capability.FEED: partial(_feed, _STEP),
    Capability.CHECKPOINT: partial(_resume, lambda run, folder: run.restore(folder)),
    Capability.SAVED_BYTES: _of_run(lambda run: run.saved_bytes(_BATCH)),
    Capability.PEAK_BYTES: _of_run(lambda run: run.peak_bytes()),
    Capability.STEP_HOOK: lambda f: f.gradient_in_hook(_ONE, scale=8.0, fused=False),
    Capability.MANUAL_STEP: lambda f: f.clip_in_manual_step(_ONE, limit=2.0, scale=8.0),
    Capability.TRACE: _of_run(lambda run: run.trace(_BATCH)),
    Capability.LIBRARY_REQUESTS: lambda f: f.request_format("bfloat16"),
    Capability.LOADED_CHECKPOINT: lambda f: f.loaded_run("float32", 1, 0.5),
    Capability.LOAD_ORDER: partial(_resume, lambda run, folder: run.restore_in(folder, "optimizer-first")),
    Capability.LIVE_STATE: _take,
    Capability.SAVED_VALUES: lambda f: f.rule(ValueSaver),
    Capability.BACKGROUND_SAVES: lambda f: f.rule(ValueSaver),
    Capability.DATA_POSITION: lambda f: f.resumed_epoch("in-order", 2),
    Capability.PLAIN_LOOP: lambda f: f.plain_trainer(exact_stack(), Recipe()),
}
"""A call for each capability that no recipe, model or format name asks for."""
_SHIPPED = {capability: part for part, capability in SHIPPED.items()}
_RULES: Mapping[Capability, type] = {
    Capability.DELAYED_SCALING: DelayedProducts,
    Capability.DYNAMIC_SCALES: DynamicProducts,
    Capability.BLOCK_SCALES: BlockScales,
    Capability.STOCHASTIC_ROUNDING: StochasticRounding,
}
_NAMED = ("formats.float8_", "formats.int8", "quantization.")
"""Prefixes of the capabilities that end with the name of a format or a quantizer."""


def compare(subject: Subject, verdict: Verdict, capability: Capability) -> None:
    """Compare the declaration of a capability with its attempt; without an attempt, request a supported capability.

    Raises:
        Misdeclared: the attempt contradicts the declaration.
        Violation: a refusal has no reason, or there was nothing to try.
        Unsupported: the attempt confirms the refusal, or a capability declared as supported is refused.
    """
    declared, acted = subject.framework.declares(capability), subject.framework.probe(capability)
    if declared.supported and acted is None:
        request(subject.framework, capability)
        acted = True
    verdict.observe(str(capability), {"declared": declared.supported, "observed": acted, "reason": declared.reason})
    if acted is not None and acted != declared.supported:
        effect = "a direct call succeeded" if acted else "a direct call had no effect"
        said = "supported" if declared.supported else "unsupported"
        raise Misdeclared("misdeclared", f"adapter declares {capability} {said}, but {effect}")
    if not declared.supported:
        reason = declared.reason
        verdict.holds(bool(reason), "a refusal has a reason", reason, "a reason", "refused-without-reason")
        verdict.holds(acted is not None, "a refusal was tried", acted, "an attempt", "refused-untried")
        raise Unsupported(capability, reason)


def request(framework: Framework, capability: Capability) -> None:
    """Request one capability from a framework.

    Raises:
        Unsupported: the framework refuses the capability, and not only in a combination.
        KeyError: this module has no request for the capability.
    """
    recipes = [recipe for recipe in _RECIPES if capability in needs(recipe)]
    models = [model for model in _MODELS if capability in model_needs(model)]
    try:
        if capability in _CALLS:
            _CALLS[capability](framework)
        elif recipes:
            chosen = (r for r in recipes if all(framework.declares(needed).supported for needed in needs(r)))
            framework.trainer(exact_stack(), next(chosen, recipes[0]))
        elif models:
            framework.trainer(models[0], Recipe())
        elif capability in _SHIPPED:
            framework.get_shipped(_SHIPPED[capability])
        elif capability in _RULES:
            framework.rule(_RULES[capability])
        elif capability.startswith(_NAMED):
            _request_by_name(framework, capability)
        else:
            raise KeyError(capability)
    except Unsupported as refusal:
        if refusal.attempt is None:
            raise


def _request_by_name(framework: Framework, capability: Capability) -> None:
    """Request a format or a quantizer by its name.

    Raises:
        Unsupported: the interface has no such name.
    """
    family, _, name = capability.partition(".")
    if family == "formats":
        framework.rule(NumberFormats).encode(np.ones(2, np.float32), name)
        return
    names: set[str] = set()
    with suppress(Unsupported):
        names |= framework.rule(Quantizers).rules().keys() | framework.rule(Quantizers).fake_rules().keys()
    with suppress(Unsupported):
        names |= framework.rule(PostTraining).rules().keys()
    if name not in names:
        raise Unsupported(capability, f"got quantizers {', '.join(sorted(names))}, want {name}")
