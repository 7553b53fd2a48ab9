"""Attempts that several adapters share: public names, optimizer options, offload, formats, quantization and ranks."""

import inspect
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fixtures.arrays import Array
from fixtures.data import exact_batch
from fixtures.model import Model
from fixtures.models import digits_mlp, exact_linear, exact_stack, scalar, tied_embedding
from fixtures.optimizers import OPTIMIZERS, SGD, Adafactor, Adam, Muon, Optimizer
from fixtures.recipe import Float8, Offload, Ranks, Recipe, Sharding
from frameworks.base.rank_group import BaseRankGroup, window_across_ranks
from frameworks.contract import (
    AmaxHistories,
    Attempt,
    Capability,
    DelayedProduct,
    NumberFormats,
    PostTraining,
    Quantizers,
    RankFailed,
    Trainer,
)
from frameworks.registry import Absence
from frameworks.ways import resolve

Make = Callable[[Model, Recipe], Trainer]
"""Creates a run without the adapter's guards."""
MakeGroup = Callable[[Model, Recipe], BaseRankGroup]
"""Creates the ranks of a run without the adapter's guards."""

_DEPRECATIONS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
_WEIGHT = "0.output.weight"
OPTIONS = frozenset(
    {
        Capability.NESTEROV,
        Capability.DAMPENING,
        Capability.COUPLED_DECAY,
        Capability.DECAY_EXCLUDED,
        Capability.FROZEN,
        Capability.AMSGRAD,
        Capability.MAXIMIZE,
        Capability.TENSOR_RATE,
        Capability.RATE_DECAY,
        Capability.ABSOLUTE_RATE,
        Capability.SMALLEST_FACTORED,
        Capability.WIDTH_RATE,
        Capability.UNADJUSTED_RATE,
        Capability.GROUP_RATES,
    }
)
"""The capabilities of every option of optimizers."""
_MESHES: Mapping[Capability, Ranks] = {
    Capability.RANKS_REPLICATED: Ranks(2),
    Capability.RANKS_OPTIMIZER: Ranks(2, "optimizer"),
    Capability.RANKS_GRADIENTS: Ranks(2, "gradients"),
    Capability.RANKS_FULL: Ranks(2, "full"),
    Capability.RANKS_HYBRID: Ranks(4, "full", replicas=2),
}
OF_ONE_PLACE = frozenset({Capability.TRACE, Capability.SAVED_BYTES})
"""Capabilities only of runs without ranks: a rank's pass covers its own samples only, and gathers weights."""
KERNEL = np.full((16, 16), 0.5, np.float32)
"""The kernel of the product in the attempt of delayed scaling."""
_VALUES = np.array([[-3.0, -1.0, 0.0, 2.0], [0.5, 1.0, -1.5, -4.0]], np.float32)


def has_effect(attempt: Attempt) -> bool:
    """Returns whether an attempt took effect: it returned True, did not raise, and warned only of deprecations."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            acted = attempt()
        except Exception:  # an attempt without effect may raise anything
            return False
    return bool(acted) and all(issubclass(warning.category, _DEPRECATIONS) for warning in warned)


def ships(owner: str, word: str) -> bool:
    """Returns whether a public name of a module or class contains the word, in any case."""
    return any(word.lower() in name.lower() for name in dir(resolve(owner)) if not name.startswith("_"))


def has_appeared(absence: Absence) -> bool:
    """Returns whether a place has one of the absent names, or a public name with one of the words."""
    places = {owner: resolve(owner) for owner in absence.places}
    named = any(hasattr(place_object, name) for place_object in places.values() for name in absence.names)
    return named or any(ships(owner, word) for owner in places for word in absence.words)


def takes(function: Callable[..., Any], *names: str) -> bool:
    """Returns whether the callable has a parameter of one of these names."""
    return any(name in inspect.signature(function).parameters for name in names)


def optimizer_attempts(run: Make, *capabilities: Capability) -> dict[Capability, Attempt]:
    """Attempts for optimizers and options that some framework, or some version, lacks.

    Args:
        capabilities: those of optimizers, ABSOLUTE_RATE, SMALLEST_FACTORED, WIDTH_RATE, UNADJUSTED_RATE, GROUP_RATES.
    Raises:
        ValueError: a capability has no attempt here.
    """
    if others := [str(capability) for capability in capabilities if capability not in _ATTEMPTS]:
        raise ValueError(f"{', '.join(others)}: no shared attempt; name it in supported_capabilities() or write one")
    return {capability: partial(_ATTEMPTS[capability], run) for capability in capabilities}


def _descends(optimizer: type[Optimizer], run: Make) -> bool:
    """Returns whether the first update, with default options and gradients of ones, lowers every weight."""
    trainer = run(scalar(1.0), Recipe(optimizer()))
    before = trainer.parameters()
    trainer.apply_gradients({name: np.ones_like(array) for name, array in before.items()})
    return all(bool((array < before[name]).all()) for name, array in trainer.parameters().items())


def _adapts(optimizer: Adafactor, run: Make) -> bool:
    """Returns whether the first update moves a weight from 1 by the rate."""
    trainer = run(scalar(1.0), Recipe(optimizer))
    trainer.apply_gradients({name: np.full_like(array, 2.0) for name, array in trainer.parameters().items()})
    return abs(float(trainer.parameters()[_WEIGHT].item()) - 0.5) < 2.0**-20


def _has_own_rates(run: Make) -> bool:
    """Returns whether the second group, a bias, moves by a rate of its own."""
    trainer = run(scalar(1.0), Recipe(SGD(1.0), groups=2, second_rate=0.5))
    trainer.apply_gradients({name: np.ones_like(array) for name, array in trainer.parameters().items()})
    return [float(value.item()) for value in trainer.parameters().values()] == [0.0, -0.5]


def _factors_from(run: Make) -> bool:
    """Returns whether a short matrix has a second moment of every element."""
    optimizer = Adafactor(0.5, smallest=9)
    trainer = run(tied_embedding(), Recipe(optimizer))
    (name, weight), *_ = trainer.parameters().items()
    trainer.apply_gradients({name: np.ldexp(np.ones_like(weight), np.arange(8) * np.arange(8)[:, None] % 3)})
    moved = np.abs(trainer.parameters()[name] - weight)
    return float(moved.max() - moved.min()) < 2.0**-20


def _makes_orthogonal(adjustment: Literal["rms", "width", "none"], factor: float, run: Make) -> bool:
    """Returns whether the update by a matrix of ones, of rank 1, has the norm that the rate and `factor` give."""
    trainer = run(tied_embedding(), Recipe(Muon(1.0, adjustment=adjustment)))
    (name, weight), *_ = trainer.parameters().items()
    trainer.apply_gradients({name: np.ones_like(weight)})
    moved = np.linalg.norm((trainer.parameters()[name] - weight).astype(np.float64))
    return bool(0.6 < moved / factor < 1.3)


_ATTEMPTS: Mapping[Capability, Callable[[Make], bool]] = {
    **{capability: partial(_descends, own) for own in OPTIMIZERS for capability in Capability.of_optimizers((own,))},
    Capability.ADAFACTOR: partial(_adapts, Adafactor(0.5)),
    Capability.ABSOLUTE_RATE: partial(_adapts, Adafactor(0.5, relative_step=False)),
    Capability.SMALLEST_FACTORED: _factors_from,
    Capability.MUON: partial(_makes_orthogonal, "rms", 0.2 * 8.0**0.5),
    Capability.WIDTH_RATE: partial(_makes_orthogonal, "width", 1.0),
    Capability.UNADJUSTED_RATE: partial(_makes_orthogonal, "none", 1.0),
    Capability.GROUP_RATES: _has_own_rates,
}


def offload_attempts(make: Make, offloads: Sequence[Offload]) -> dict[Capability, Attempt]:
    """Attempts for each capability that one of these offloads needs."""
    return {c: partial(_leaves, make, offload) for offload in offloads for c in Capability.of_offload(offload)}


def _leaves(make: Make, offload: Offload) -> bool:
    """Returns whether bytes of every kind were offloaded during an update or are offloaded after it."""
    run = make(exact_stack(), Recipe(Adam(), offload=offload))
    run.update((exact_batch(8),))
    away = run.offloaded_bytes()
    return set(away) == set(offload.what) and all(size > 0 for size in away.values())


def casts_of(formats: NumberFormats) -> frozenset[Capability]:
    """The capabilities of a framework's casts to integers and to 8-bit formats."""
    return frozenset(Capability(f"formats.{name}") for name in (*formats.casts(), "int8"))


def quantizers_of(quantizers: Quantizers) -> frozenset[Capability]:
    """The capabilities of quantizers, fake ones too."""
    return frozenset(Capability(f"quantization.{name}") for name in (*quantizers.rules(), *quantizers.fake_rules()))


def techniques_of(post_training: PostTraining) -> frozenset[Capability]:
    """The capabilities of post-training quantization."""
    return frozenset(Capability(f"quantization.{name}") for name in post_training.rules())


def delayed_attempts(factory: Callable[[], DelayedProduct]) -> dict[Capability, Attempt]:
    """An attempt of delayed scaling; `factory` creates a product with the kernel `KERNEL`."""
    return {Capability.DELAYED_SCALING: partial(_scales_late, factory)}


def quantizer_attempts(quantizers: Quantizers) -> dict[Capability, Attempt]:
    """Attempts for each offered quantizer, fake or not."""
    return {
        **{Capability(f"quantization.{name}"): partial(_quantizes, quantizers, name) for name in quantizers.rules()},
        **{Capability(f"quantization.{name}"): partial(_fakes, quantizers, name) for name in quantizers.fake_rules()},
    }


def technique_attempts(post_training: PostTraining) -> dict[Capability, Attempt]:
    """Attempts for each offered post-training quantization."""
    rules = post_training.rules()
    return {Capability(f"quantization.{name}"): partial(_quantizes_a_model, post_training, name) for name in rules}


def float8_attempts(trainer: Callable[[Model, Recipe], Trainer]) -> dict[Capability, Attempt]:
    """An attempt of float8 training."""
    return {Capability.FLOAT8_TRAINING: partial(_trains_in_eighths, trainer)}


def _trains_in_eighths(trainer: Callable[[Model, Recipe], Trainer]) -> bool:
    """Returns whether a window enters the amax history, and predictions have fewer distinct values than inputs."""
    run = trainer(exact_linear(), Recipe(SGD(), quantization=Float8(4)))
    run.update((exact_batch(),))
    (history,) = run.view(AmaxHistories).values()
    fine = np.repeat(np.linspace(1.0, 1.0625, 9, dtype=np.float32)[:, None], 8, axis=1)
    (outputs,) = run.predict(fine).values()
    return bool(history["input"].amax.any()) and len(np.unique(outputs[:, 0])) <= 2


def _quantizes_a_model(post_training: PostTraining, name: str) -> bool:
    """Returns whether weights become integer codes, and predictions are finite and depend on the samples."""
    model = digits_mlp((max(8, -(-post_training.rules()[name].smallest // 64)),))
    samples = np.linspace(-1.0, 1.0, 4 * model.sample[0], dtype=np.float32).reshape(4, *model.sample)
    quantized = post_training.quantize(name, model, model.weights(0), (samples,))
    (predicted,) = quantized.predict(samples).values()
    stored = [weight for weight in quantized.weights().values() if weight is not None]
    coded = bool(stored) and all(
        weight.codes.dtype.kind == "i" and len(np.unique(weight.codes)) > 2 for weight in stored
    )
    return coded and bool(np.isfinite(predicted).all()) and bool(np.ptp(predicted, axis=0).any())


def _scales_late(factory: Callable[[], DelayedProduct]) -> bool:
    """Returns whether after some steps a value beyond the first scale's range is preserved."""
    product = factory()
    inputs, gradient = np.full((1, 16), 1000.0, np.float32), np.ones((1, 16), np.float32)
    outputs = [product.train((inputs, gradient))[0].output for _ in range(4)]
    exact = inputs @ KERNEL
    return bool(np.all(np.abs(outputs[-1] - exact) <= 0.1 * exact) and np.any(np.abs(outputs[0] - exact) > 0.1 * exact))


def _quantizes(quantizers: Quantizers, name: str) -> bool:
    """Returns whether values become several integer codes, which dequantize to nearby values."""
    quantized = quantizers.quantize(name, _VALUES)
    near = np.abs(quantized.values - _VALUES) <= np.broadcast_to(quantized.scale, _VALUES.shape)
    return quantized.codes.dtype.kind == "i" and len(np.unique(quantized.codes)) > 2 and bool(near.all())


def _fakes(quantizers: Quantizers, name: str) -> bool:
    """Returns whether a value between two codes is moved to one of them, with a gradient."""
    axis = quantizers.fake_rules()[name].axis
    places = 1 if axis is None else _VALUES.shape[1 - axis]
    scale, zero = np.full(places, 1.0, np.float32), np.zeros(places, np.int32)
    values, gradient = quantizers.fake_quantize(name, _VALUES, scale, zero)
    return bool((values == np.trunc(values)).all()) and gradient.shape == _VALUES.shape and bool(gradient.any())


def with_ranks(
    attempts: Mapping[Capability, Attempt], make: MakeGroup, always: Ranks | None, *, reshaped: Sharding = "full"
) -> Mapping[Capability, Attempt]:
    """Attempts for a mode in which every recipe has ranks: `attempts`, and one for each capability of ranks.

    Args:
        always: the mode's ranks, None for none.
        reshaped: sharding level of a run that is restored by another number of ranks.
    """
    hidden = OF_ONE_PLACE if always is not None else frozenset()
    remaining = {c: attempt for c, attempt in attempts.items() if c not in hidden}
    return remaining | {
        **{c: partial(_shards, make, ranks) for c, ranks in _MESHES.items()},
        Capability.RANKS_LOW_REDUCTION: partial(_reduces_low, make),
        Capability.RANKS_EMPTY: partial(_takes_nothing, make),
        Capability.RANKS_COLLECTIVES: partial(_counts, make),
        Capability.RANKS_LOST: partial(_loses_one, make),
        Capability.RANKS_RESHAPE: partial(_reshapes, make, reshaped),
    }


def _train_ranks(make: MakeGroup, ranks: Ranks) -> BaseRankGroup:
    """A rank group after one update with different samples on every rank."""
    rank_group = make(exact_stack(), Recipe(Adam(), ranks=ranks))
    rank_group.update(window_across_ranks((exact_batch(8),), ranks.count))
    return rank_group


def _shards(make: MakeGroup, ranks: Ranks) -> bool:
    """Returns whether each rank holds only a part of the state that the level shards."""
    size = 4 * sum(int(np.prod(shape)) for shape in exact_stack().parameter_shapes().values())
    copy = {"parameter": size, "gradient": size, "optimizer": 2 * size}
    sizes = _train_ranks(make, ranks).resident_bytes()
    below = {kind: size if kind in ranks.sharded else size + 1 for kind, size in copy.items()}
    return all(0 < own[kind] < below[kind] for own in sizes for kind in copy)


def _weight(rank_group: BaseRankGroup) -> Array:
    return rank_group.states()[0][f"parameter/{_WEIGHT}"]


def _reduces_low(make: MakeGroup) -> bool:
    """Returns whether the sum of the gradients 1 and 2^-9 is rounded to 1, as in bfloat16."""
    rank_group = make(scalar(0.0), Recipe(SGD(1.0), ranks=Ranks(2, reduce="bfloat16")))
    rank_group.apply_gradients([[{_WEIGHT: np.full((1, 1), 2.0 * g, np.float32)}] for g in (1.0, 2.0**-9)])
    return float(_weight(rank_group)[0, 0]) == -1.0


def _takes_nothing(make: MakeGroup) -> bool:
    """Returns whether a rank without samples leaves the gradient to the other rank."""
    rank_group = make(exact_linear(), Recipe(SGD(0.5), ranks=Ranks(2)))
    before = _weight(rank_group)
    updates = rank_group.update(window_across_ranks((exact_batch(1),), 2))
    return not any(own.skipped for own in updates) and not np.array_equal(before, _weight(rank_group))


def _counts(make: MakeGroup) -> bool:
    rank_group = _train_ranks(make, Ranks(2))
    return rank_group.collectives()[0]["gradients"] == len(exact_stack().parameter_shapes())


def _loses_one(make: MakeGroup) -> bool:
    """Returns whether the exit of rank 1 ends the update with an error that names this rank."""
    rank_group = make(exact_linear(), Recipe(SGD(0.5), ranks=Ranks(2)))
    try:
        rank_group.fail_rank(window_across_ranks((exact_batch(8),), 2), 1, "exits")
    except RankFailed as failed:
        return failed.ranks == (1,)
    return False


def _reshapes(make: MakeGroup, level: Sharding) -> bool:
    """Returns whether four ranks restore the weights that two ranks saved."""
    saved = _train_ranks(make, Ranks(2, level))
    with tempfile.TemporaryDirectory() as folder:
        saved.save(Path(folder))
        expected = saved.states()[0]
        loaded = make(exact_stack(), Recipe(Adam(), ranks=Ranks(4, level)))
        loaded.restore(Path(folder))
        state = loaded.states()[0]
    return all(np.array_equal(state[name], expected[name]) for name in expected if name.startswith("parameter/"))
