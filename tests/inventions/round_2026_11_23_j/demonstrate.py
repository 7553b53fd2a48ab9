"""Shows of every fault that it changes what the contract's verbs give: `python -m tests.inventions.round_2026_11_23_j.demonstrate`."""  # noqa: E501

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fixtures.data import exact_batch, sincos_batch, token_batch
from fixtures.layers import Activation, BatchNorm, Dense, Dropout, Head, Heads, LayerNorm
from fixtures.model import Batch, Model
from fixtures.models import dropout_probe, encoder, exact_linear, scalar, sincos, two_heads
from fixtures.recipe import BFLOAT16, Adam, AdamW, DynamicScaling, Precision, Recipe, Recompute, Steps
from frameworks.reference.framework import ReferenceFramework
from tests.inventions.round_2026_11_23_j import faults_j_1, faults_j_2, faults_j_3

Framework = ReferenceFramework
Look = Callable[[Framework], Any]
ONES = {"0.output.weight": np.ones((8, 4), np.float32), "0.output.bias": np.ones(4, np.float32)}


def small(*layers: Any, width: int = 6, units: int = 2) -> Model:
    """Layers with a head of squared error behind them."""
    heads = Heads((Head("output", units),))
    return Model("small", (*layers, heads), (width,), (("output", "squared_error"),))


def batch_of(width: int = 6, units: int = 2, size: int = 8, seed: int = 0, factor: float = 1.0) -> Batch:
    """Standard normal inputs and targets."""
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((size, width)) * factor, rng.standard_normal((size, units))
    return Batch(x.astype(np.float32), {"output": y.astype(np.float32)})


def heads_batch() -> Batch:
    """A batch with targets for both heads of `two_heads`."""
    rng = np.random.default_rng(3)
    parts = [rng.standard_normal((4, n)).astype(np.float32) for n in (8, 2, 2)]
    return Batch(parts[0], {"a": parts[1], "b": parts[2]})


PLACE = tempfile.TemporaryDirectory(prefix="demonstrate-")


def folder() -> Path:
    """A new folder, gone when the process ends."""
    return Path(tempfile.mkdtemp(dir=PLACE.name))


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or the name of what it raises."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__


# what is computed


def softplus(f: Framework) -> Any:
    return f.run_op("softplus", np.array([1.0, 100.0], np.float32))


def norm_of_small_rows(f: Framework) -> Any:
    t = f.trainer(small(LayerNorm()), Recipe())
    return t.predict(batch_of(factor=0.01).inputs), t.predict(np.array([[9, 1, 1, 1, 1, 1]], np.float32))


def norm_gradients(f: Framework) -> Any:
    return f.trainer(encoder(blocks=1), Recipe()).gradients((token_batch(2),))


def low_scores(f: Framework) -> Any:
    q, v = np.full((1, 4, 8), 300.0, np.float32), np.ones((1, 4, 8), np.float32)
    return f.run_op("attention", q, -q, v)


def double_sum(f: Framework) -> Any:
    third = np.full(3, 1.0 / 3.0)
    added = f.run_op("add", third, third)
    return added, f.trainer(sincos(8), Recipe()).update((sincos_batch(16),))


def later_lists(f: Framework) -> Any:
    a = np.full((2, 2), 1.001, np.float32)
    found = []
    for wide, low in ((("matmul",), ()), ((), ("exp",))):
        with f.autocast(BFLOAT16, wide=wide, low=low):
            found.append(f.run_op("matmul", a, a))
    return found


def sequence_masks(f: Framework) -> Any:
    t = f.trainer(encoder(blocks=1, dropout=0.5), Recipe())
    t.update((token_batch(2),))
    return t.random_state(), t.parameters()


def second_seed(f: Framework) -> Any:
    found = []
    for seed in (0, 1):
        t = f.trainer(dropout_probe(), Recipe(seed=seed))
        found.append(t.gradients((Batch(np.ones((2, 64), np.float32), {"output": np.zeros((2, 1), np.float32)}),)))
    return found


def dropped() -> Model:
    """Dense layers with dropout between them."""
    return small(Dense(6), Dropout(0.5), Dense(6), Activation("tanh"))


def recomputed_window(f: Framework) -> Any:
    t = f.trainer(dropped(), Recipe(recompute=Recompute(2), accumulation=2))
    t.update((batch_of(seed=1), batch_of(seed=2)))
    return t.state()


def recomputed_losses(f: Framework) -> Any:
    model = Model("two", (Dense(8), Dropout(0.5), Dense(8), *two_heads().layers[1:]), (8,), two_heads().losses)
    recipe = Recipe(recompute=Recompute(1), separate_losses=True, scaling=DynamicScaling(initial=4.0))
    return f.trainer(model, recipe).gradients((heads_batch(),))


def bytes_in_window(f: Framework) -> Any:
    t = f.trainer(exact_linear(), Recipe(accumulation=2))
    t.accumulate(exact_batch(4), 8)
    return t.saved_bytes(exact_batch(4))


# scaling, clipping, the update


def loss_after_infinity(f: Framework) -> Any:
    t = f.trainer(exact_linear(), Recipe(scaling=DynamicScaling(initial=8.0)))
    bad = exact_batch()
    broken = Batch(np.where(bad.inputs > 1.0, np.inf, bad.inputs).astype(np.float32), bad.targets)
    return t.update((bad,)).loss, t.update((broken,)).loss


def huge_gradients(f: Framework) -> Any:
    t = f.trainer(exact_linear(), Recipe(clip=1.0))
    return t.feed({name: g * np.float32(1e20) for name, g in ONES.items()}).gradient_norm, t.parameters()


def window_norm(f: Framework) -> Any:
    return f.trainer(exact_linear(), Recipe(accumulation=2)).update(exact_batch().into(2)).gradient_norm


def large_elements(f: Framework) -> Any:
    t = f.trainer(exact_linear(), Recipe(clip=1e6))
    t.feed({name: g * np.float32(8.0) for name, g in ONES.items()})
    return t.parameters()


def rates(f: Framework) -> Any:
    t = f.trainer(exact_linear(), Recipe(schedule=Steps((2,), (1.0, 0.5))))
    return [t.feed(ONES).learning_rate for _ in range(4)]


def one_share(f: Framework) -> Any:
    t = f.trainer(exact_linear(), Recipe(scaling=DynamicScaling(initial=8.0), optimizers=2))
    return outcome(lambda: t.feed({"0.output.weight": ONES["0.output.weight"]}).skipped)


def long_interval(f: Framework) -> Any:
    t = f.trainer(scalar(), Recipe(scaling=DynamicScaling(initial=8.0, interval=300)))
    return [t.feed({"0.output.weight": np.zeros((1, 1), np.float32)}).scale_after for _ in range(300)][-1]


def overflow_at_one(f: Framework) -> Any:
    t = f.trainer(exact_linear(), Recipe(scaling=DynamicScaling(initial=1.0)))
    update = t.feed(ONES | {"0.output.bias": np.array([1, np.inf, 1, 1], np.float32)})
    return update.skipped, t.parameters()


def half_skipped(f: Framework) -> Any:
    t = f.trainer(exact_linear(), Recipe(scaling=DynamicScaling(initial=8.0), optimizers=2, clip=1.0))
    t.feed(ONES | {"0.output.bias": np.array([1, np.inf, 1, 1], np.float32)})
    return t.parameters()


def single_decay(f: Framework) -> Any:
    t = f.trainer(scalar(), Recipe(AdamW(weight_decay=0.5)))
    t.feed({"0.output.weight": np.zeros((1, 1), np.float32)})
    return t.parameters()


def failed_evaluation(f: Framework) -> Any:
    t = f.trainer(exact_linear(), Recipe(average=0.5))
    for _ in range(3):
        t.feed(ONES)
    return outcome(lambda: t.predict_averaged(np.ones((2, 5), np.float32))), t.parameters()


def losses_after_a_look(f: Framework) -> Any:
    t = f.trainer(exact_linear(), Recipe(accumulation=2))
    first, second = exact_batch().into(2)
    t.accumulate(first, 8)
    t.gradients((exact_batch(seed=5),))
    t.accumulate(second, 8)
    return t.apply()


def trace_of_two(f: Framework) -> Any:
    t = f.trainer(two_heads(), Recipe(separate_losses=True, scaling=DynamicScaling(initial=4.0)))
    return t.trace(heads_batch()).gradients


# checkpoints


def second_save(f: Framework) -> Any:
    t, place = f.trainer(exact_linear(), Recipe(Adam())), folder()
    for _ in range(2):
        t.update((exact_batch(),))
        t.save(place)
    t.restore(place)
    return t.optimizer_state()


def statistics_after_load(f: Framework) -> Any:
    t, place = f.trainer(small(Dense(4), BatchNorm()), Recipe()), folder()
    t.update((batch_of(),))
    t.save(place)
    t.restore(place)
    t.update((batch_of(seed=1),))
    return t.buffers()


def half_moments(f: Framework) -> Any:
    t, place = f.trainer(small(Dense(4)), Recipe(Adam(), precision=Precision("O2", "float16"))), folder()
    t.update((batch_of(),))
    t.save(place)
    t.restore(place)
    return t.optimizer_state()


def saved_over(f: Framework) -> Any:
    t, place = f.trainer(exact_linear(), Recipe(accumulation=2)), folder()
    t.accumulate(exact_batch(4), 8)
    t.save(place)
    t.accumulate(exact_batch(4, seed=1), 8)
    t.apply()
    t.save(place)
    t.restore(place)
    held = t.accumulator()
    t.update(exact_batch().into(2))
    return held, t.parameters()


def refused_load(f: Framework) -> Any:
    t = f.trainer(exact_linear(), Recipe(accumulation=2))
    t.accumulate(exact_batch(4), 8)
    return outcome(lambda: t.restore(folder())), t.accumulator()


def cut_masters(f: Framework) -> Any:
    t, place = f.trainer(small(Dense(4)), Recipe(precision=Precision("O2", "bfloat16"))), folder()
    t.update((batch_of(),))
    t.save(place)
    t.restore(place)
    return t.parameters()


LOOKS: dict[str, Look] = {
    "SoftplusExponentiatesFirst": softplus,
    "NormRescalesBeforeEpsilon": norm_of_small_rows,
    "NormBackwardTakesSamplesForRows": norm_gradients,
    "AttentionSoftmaxStartsAtSentinel": low_scores,
    "DoubleSumsComeInSingle": double_sum,
    "WideListIsKept": later_lists,
    "SequenceDropoutStandsStill": sequence_masks,
    "MasksAreShared": second_seed,
    "ReplayBeginsWithTheWindow": recomputed_window,
    "MomentIsSpent": recomputed_losses,
    "AccumulatorCountsAsSaved": bytes_in_window,
    "BadLossLooksLikeTheLast": loss_after_infinity,
    "NormThatOverflowsIsReplaced": huge_gradients,
    "NormIsAddedUpOverMicroBatches": window_norm,
    "ElementsAreBoundedToo": large_elements,
    "BoundaryActsTwice": rates,
    "FirstUpdateNeedsBothOptimizers": one_share,
    "GoodStepsAreOneByte": long_interval,
    "ScaleOfOneIsNoScale": overflow_at_one,
    "SkippedShareIsInTheNorm": half_skipped,
    "SingleElementsDoNotDecay": single_decay,
    "FailedEvaluationLeavesTheAverage": failed_evaluation,
    "LookingAddsToTheLosses": losses_after_a_look,
    "TraceShowsTheLastLoss": trace_of_two,
    "LaterSavesRepeatTheMoments": second_save,
    "StatisticsBeginAgainAfterALoad": statistics_after_load,
    "LoadForgetsMomentsOfHalves": half_moments,
    "OlderWindowStaysInTheFile": saved_over,
    "RefusedLoadDropsTheWindow": refused_load,
    "LoadCutsMastersOff": cut_masters,
}


def text(value: Any) -> str:
    """A result in full, so that two may be compared."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {text(part)}" for name, part in sorted(value.items())) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(text(part) for part in value) + "]"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    return f"{type(value).__name__}({text(vars(value))})" if hasattr(value, "__dataclass_fields__") else repr(value)


def faults(module: ModuleType) -> dict[str, type[Framework]]:
    """The faulty frameworks of a module by name."""
    return {name: made for name, made in vars(module).items() if hasattr(made, "clause")}


def main() -> int:
    """Runs every look on the plain and on the faulty framework; 1 if one shows no difference."""
    made = {name: cls for module in (faults_j_1, faults_j_2, faults_j_3) for name, cls in faults(module).items()}
    if made.keys() != LOOKS.keys():
        print("without a look, or without a fault:", sorted(made.keys() ^ LOOKS.keys()))
        return 1
    missed = 0
    for name, look in LOOKS.items():
        with np.errstate(all="ignore"):
            plain = text(look(Framework("cpu")))
            differs = plain == text(look(Framework("cpu"))) and plain != text(look(made[name]("cpu")))
        missed += not differs
        print(f"{name}: {'differs' if differs else 'NO DIFFERENCE'} ({made[name].kind}, {made[name].clause})")
    print(f"{len(LOOKS) - missed} of {len(LOOKS)} faults change what is seen")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
