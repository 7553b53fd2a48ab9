"""Rank groups of PyTorch: worker groups, and modes with ranks."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from fixtures.arrays import Array
from fixtures.data import sincos_batch
from fixtures.model import Model
from fixtures.models import sincos
from fixtures.optimizers import SGD, Adafactor, Adagrad, Muon
from fixtures.recipe import MASTERED, Precision, Ranks, Recipe
from frameworks.base import BaseRankGroup, ranks_of, window_across_ranks
from frameworks.contract import Attempt, Capability, Unsupported, needs
from frameworks.ranks import RemoteMeshes, RemoteRankGroup, worker_group_of
from frameworks.torch.declarations import NO_MASTERS
from frameworks.torch.distributed import deepspeed_start
from frameworks.torch.distributed.deepspeed_start import stays_without_gradient, trains
from frameworks.torch.probes import attempts
from frameworks.torch.training.optimizers import wants_float32_gradients, wants_fused
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
