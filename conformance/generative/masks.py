"""The law of dropout masks: models whose gradients reveal each mask, the expected results, and chances of equal masks.

The first weight has a row for each sample, or for each place of a sequence. The rows of its gradient are what the
backward pass lets through dropout. So the mask is read off, and all gradients and the loss are computed from it. No
weight is negative and every target exceeds every output, so nothing cancels and relative errors are small.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import strategies as st

from conformance.checks.evidence import same_bits
from conformance.checks.subject import Subject, supports
from conformance.generative.programs.case import (
    CountBytes,
    GeneratedBatch,
    GeneratedCase,
    GeneratedModel,
    Gradients,
    OpenScope,
    Predict,
    Restore,
    Save,
    StartAgain,
    Target,
    TraceLayers,
    Train,
    Verb,
)
from conformance.generative.programs.executor import PlayFailed, SubjectExecutor
from conformance.generative.programs.features import features
from conformance.generative.programs.judge import failure_after, make_failure
from conformance.generative.programs.recipes import PRECISIONS, is_offered, scope_formats, variants
from conformance.generative.programs.variations import MANY_UPDATES
from conformance.search import Failure, GenerativeSettings, Observation, generative_settings
from fixtures.arrays import Array, format_of
from fixtures.model import Batch, Dense, Dropout, Embedding, Flatten, Head, Heads, Layer, LossKind, Model
from fixtures.recipe import SGD, DynamicScaling, Precision, Recipe, Recompute, Scaling, StaticScaling
from frameworks.contract import Capability, Framework, Trainer

TELLING = 40.0
"""Bits of information of a mask above which two random masks are equal with probability below 1e-12."""
DEVIATIONS = 6.0
"""Allowed deviation of the kept share in standard deviations: chance exceeds it once in 500 million."""


ROWS = 32
"""Rows of the first weight, and so the largest number of samples or places of all micro-batches of a window."""
TARGET = 64.0
"""A target that is more than twice the largest output."""
RATE = 2.0**-14
"""A learning rate small enough that growing weights stay small."""
OPTIMIZER = SGD(RATE)
"""An optimizer whose update reveals the gradient."""
SMALLEST_FLOAT16 = 2.0**-24
"""The smallest positive number of float16: the error of an activation that is subnormal in float16."""
COARSE = 0.25
"""Limit of the relative rounding error: a larger one would hide the effect of a mask."""
RATES = (0.5, 0.5, 0.25, 0.75, 0.1)
MOST_STEPS = 6
"""Largest number of steps between the first and the last training pass."""
STRIDES = (1, 1, 2**16)
"""Differences between the seeds of consecutive runs; a larger one changes only high bits of the seed."""
_INTO: tuple[Target, ...] = ("same", "fresh", "used", "predicted")

DropoutMask = tuple[str, float, Array]
"""Path, rate and mask of a dropout."""


@dataclass
class Shares:
    """Deviation of the number of kept values from the expected number, and its variance, summed over masks.

    A kept zero counts as kept: the mask is not the zero pattern of the output.
    """

    deviation: float = 0.0
    variance: float = 0.0

    def add(self, rate: float, mask: Array) -> None:
        """Add a mask."""
        self.deviation += float(mask.sum()) - mask.size * (1.0 - rate)
        self.variance += mask.size * rate * (1.0 - rate)

    def describe_problem(self) -> str | None:
        """Return the problem with the kept shares; None if chance explains them."""
        allowed = DEVIATIONS * float(np.sqrt(self.variance)) + 1.0
        if abs(self.deviation) <= allowed:
            return None
        want = f"want at most {allowed:.0f} by chance"
        return f"deviation of the number of kept values: got {self.deviation:+.0f}, {want}"


@dataclass(frozen=True)
class ObservedMask:
    """The mask of the dropout at `path` in one pass; `place` is the place of the verb."""

    place: int
    path: str
    rate: float
    mask: Array

    def telling(self, values: int) -> bool:
        """Return whether masks of `values` values practically never coincide by chance."""
        keep_rate = 1.0 - self.rate
        return -values * math.log2(keep_rate**2 + self.rate**2) >= TELLING

    @property
    def repeats_itself(self) -> bool:
        """True if two samples or positions have the same mask, which chance does not explain."""
        rows, width = self.mask.reshape(-1, self.mask.shape[-1]), self.mask.shape[-1]
        return self.telling(width) and any(np.array_equal(a, b) for a, b in combinations(rows, 2))


def readable(masks: list[DropoutMask]) -> Iterator[DropoutMask]:
    """Yield the masks that a gradient reached: none that lies before a dropout that kept nothing."""
    for index, entry in enumerate(masks):
        if all(later.any() for _, _, later in masks[index + 1 :]):
            yield entry


def find_repetition(masks: list[ObservedMask], alone: bool) -> tuple[int, str, str] | None:
    """Return the first mask that repeats or complements another one, or repeats one of its own rows."""
    for observed in masks if alone else ():
        if observed.repeats_itself:
            text = f"the mask of layer {observed.path} is the same for two samples or positions"
            return observed.place, "repeated", text
    for one, other in combinations(masks, 2):
        if one.mask.shape != other.mask.shape or not (one.telling(one.mask.size) and other.telling(one.mask.size)):
            continue
        for word, mask in (("the mask", one.mask), ("the opposite of the mask", ~one.mask)):
            if np.array_equal(mask, other.mask):
                text = f"the mask of layer {other.path} is {word} that layer {one.path} had before"
                return other.place, "repeated", text
    return None


@dataclass(frozen=True)
class RevealingModel(GeneratedModel):
    """A dense layer or an embedding, dropout, perhaps another dense layer with dropout, and heads."""

    @cached_property
    def model(self) -> Model:
        """The model with no negative weight, and a third of the first weight's entries zero."""
        plain = Model("masks", self.layers, self.sample, self.losses, integer_inputs=self.integer_inputs)
        rng = np.random.default_rng([self.seed, 31])
        starts: list[tuple[str, Array]] = []
        for index, (name, shape) in enumerate(plain.parameter_shapes().items()):
            if name.endswith("bias"):
                starts.append((name, np.zeros(shape)))
            elif index == 0:
                starts.append((name, np.where(rng.random(shape) < 1 / 3, 0.0, rng.uniform(0.25, 0.5, shape))))
            else:
                starts.append((name, rng.uniform(1 / 64, 1 / 32, shape)))
        return Model("masks", self.layers, self.sample, self.losses, self.integer_inputs, starts=tuple(starts))

    @property
    def places(self) -> int:
        """Number of rows of the first weight that a sample uses."""
        return self.sample[0] if self.integer_inputs else 1

    def rows(self, micro: GeneratedBatch) -> Array:
        """Return the rows of each sample, (n, places), int64."""
        first = np.arange(micro.size * self.places).reshape(micro.size, self.places)
        return np.asarray((micro.seed + first) % ROWS)

    def batch(self, micro: GeneratedBatch) -> Batch:
        """Return the data of a micro-batch: ids, or a one-hot row for each sample; targets may be spoilt."""
        rows = self.rows(micro)
        inputs = rows if self.integer_inputs else np.eye(ROWS, dtype=np.float32)[rows[:, 0]]
        units = {head.name: head.units for head in self.model.heads.heads}
        target = TARGET if micro.spoilt is None else micro.spoilt
        return Batch(inputs, {name: np.full((micro.size, n), target, np.float32) for name, n in units.items()})


class _Executor(SubjectExecutor):
    """Plays a program on a revealing model; the seed of each new run is larger by `stride`."""

    runs, stride = 0, 1

    def make(self, weights: dict[str, Array] | None = None) -> Trainer:
        recipe = self.case.recipe.replace(seed=self.case.recipe.seed + self.runs * self.stride)
        return self._subject.trainer(self.case.drawn.model, recipe, weights)

    def batch(self, micro: GeneratedBatch) -> Batch:
        drawn = self.case.drawn
        assert isinstance(drawn, RevealingModel)
        batch = drawn.batch(micro)
        self.lend([batch.inputs, *batch.targets.values()])
        return batch

    def do(self, verb: Verb) -> dict[str, object]:
        self.runs += isinstance(verb, StartAgain)
        return dict(super().do(verb))


@dataclass(frozen=True)
class TrainingPass:
    """Results of a training pass.

    Attributes:
        weights: the parameters before the pass, by canonical name.
        gradients: gradients of the window's mean loss, by canonical name.
        slack: absolute error of each gradient, in addition to rounding, that comes from reading it off an update.
        loss: the window's loss, None if it is not reported.
    """

    place: int
    micros: tuple[GeneratedBatch, ...]
    weights: dict[str, Array]
    gradients: dict[str, Array]
    slack: dict[str, float] = field(default_factory=dict)
    loss: float | None = None


@dataclass(frozen=True)
class MaskedCase:
    """A program on a revealing model: every training pass must show valid masks that no earlier pass had.

    Attributes:
        stride: difference between the seeds of consecutive runs.
    """

    drawn: RevealingModel
    recipe: Recipe
    program: tuple[Verb, ...]
    stride: int = 1

    @property
    def case(self) -> GeneratedCase:
        """The case in the form that other laws use."""
        return GeneratedCase(self.drawn, self.recipe, self.program)

    def words(self) -> frozenset[str]:
        """Return the features that exclusions may name."""
        return features(self.case) | ({"seed=64-bit"} if self.stride >= 2**32 else frozenset())

    def clause(self, subject: Subject, laws: GenerativeSettings, failure: Failure) -> tuple[str, str]:
        """Return the law's clause or that of the kept share, and the message."""
        clause = "autocast.dropout-scales-what-it-keeps" if failure.name == "share" else "laws.masks"
        return clause, failure.breaking(clause)

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        """Return the first pass whose gradients match no mask, or the first mask that repeats an earlier one."""
        try:
            with TemporaryDirectory() as folder:
                executor = _Executor(subject, self.case, Path(folder))
                executor.stride = self.stride
                observations = executor.play().observations
        except PlayFailed as failed:
            return make_failure(failed)
        if (index := self._find_stalled_stream(observations)) is not None:
            return failure_after(self.program, index, "stream", "the random stream has not advanced with the update")
        observed: list[ObservedMask] = []
        shares = Shares()
        for training_pass in self._passes(observations):
            if not self._can_judge(training_pass):
                break
            masks = self._read_masks(training_pass)
            if (difference := self._find_difference(training_pass, masks)) is not None:
                return failure_after(self.program, training_pass.place, *difference)
            for path, rate, mask in readable(masks):
                shares.add(rate, mask)
                observed.append(ObservedMask(training_pass.place, path, rate, mask))
        alone = subject.complete_recipe(self.recipe).ranks is None
        if (repetition := find_repetition(observed, alone)) is not None:
            return failure_after(self.program, *repetition)
        if (text := shares.describe_problem()) is not None:
            return failure_after(self.program, len(self.program) - 1, "share", text)
        return None

    def _find_stalled_stream(self, observations: tuple[Observation | None, ...]) -> int | None:
        """Return the place of the first update, applied or skipped, that changes no visible random stream."""
        before: Observation = {}
        for index, (verb, after) in enumerate(zip(self.program, observations, strict=True)):
            if after is None:
                continue
            streams = _select_by_prefix(before, "random/")
            if isinstance(verb, Train) and streams and same_bits(streams, _select_by_prefix(after, "random/")):
                return index
            before = after
        return None

    def _passes(self, observations: tuple[Observation | None, ...]) -> Iterator[TrainingPass]:
        before: Observation = {}
        for index, (verb, after) in enumerate(zip(self.program, observations, strict=True)):
            if after is None:
                continue
            weights = _select_by_prefix(before, "parameter/")
            match verb:
                case Gradients(micros=micros, times=times):
                    gradients = _select_by_prefix(after, "result/gradient.")
                    for number in range(times):
                        pass_gradients = {n: g[number] for n, g in gradients.items()} if times > 1 else gradients
                        yield TrainingPass(index, micros, weights, pass_gradients)
                case TraceLayers(micro=micro):
                    yield TrainingPass(index, (micro,), weights, _select_by_prefix(after, "result/gradient."))
                case Train(micros=micros, times=1) if not after["result/skipped"]:
                    old, new = (
                        _select_by_prefix(observation, "master/") or _select_by_prefix(observation, "parameter/")
                        for observation in (before, after)
                    )
                    unit = format_of("float32").unit_roundoff
                    if all(value.dtype == np.float32 for value in new.values()):
                        moved = {name: (old[name].astype(np.float64) - new[name]) / RATE for name in old}
                        slack = {name: 4.0 * unit * float(np.abs(new[name]).max()) / RATE for name in old}
                        yield TrainingPass(index, micros, weights, moved, slack, float(after["result/loss"]))
            before = after

    def _can_judge(self, training_pass: TrainingPass) -> bool:
        """Return whether no weight is negative and no output comes near its target, whatever the masks are."""
        if any((value.astype(np.float64) < 0.0).any() for value in training_pass.weights.values()):
            return False
        keeps = [(path, rate, np.ones(shape, bool)) for path, rate, shape in self._shapes(training_pass.micros)]
        values = _Computed(self, training_pass, keeps)
        return bool(max(float(y.max()) for y in values.outputs.values()) < TARGET / 2)

    def _shapes(self, micros: tuple[GeneratedBatch, ...]) -> Iterator[tuple[str, float, tuple[int, ...]]]:
        samples = sum(micro.size for micro in micros)
        for path, layer, shape in self.drawn.model.shapes():
            if isinstance(layer, Dropout):
                yield path, layer.rate, (samples, *shape)

    def _read_masks(self, training_pass: TrainingPass) -> list[DropoutMask]:
        """Return path, rate and mask of every dropout; the mask is where the gradient before it is not zero."""
        rows = np.concatenate([self.drawn.rows(micro) for micro in training_pass.micros])
        masks: list[DropoutMask] = []
        for path, rate, shape in self._shapes(training_pass.micros):
            before = f"{int(path) - 1}"
            if before == "0":
                read = training_pass.gradients["0.weight"][rows].reshape(shape)
            else:
                read = training_pass.gradients[f"{before}.bias"].reshape(shape)
            least = training_pass.slack.get(f"{before}.{'weight' if before == '0' else 'bias'}", 0.0)
            masks.append((path, rate, np.abs(read.astype(np.float64)) > least))
        return masks

    def _find_difference(self, training_pass: TrainingPass, masks: list[DropoutMask]) -> tuple[str, str] | None:
        """Return the first gradient that differs from the one computed with these masks; None if none does."""
        computed = _Computed(self, training_pass, masks)
        precision = self.recipe.precision
        unit = format_of("float32" if precision.level == "O0" else precision.format).unit_roundoff
        share = unit * (2.0 * computed.terms + 16.0)
        if share > COARSE:
            return None
        largest = max(float(np.abs(expected).max(initial=0.0)) for expected in computed.gradients.values())
        least = 4.0 * SMALLEST_FLOAT16 * largest if precision.format == "float16" else 0.0
        for name, expected in computed.gradients.items():
            gap = np.abs(training_pass.gradients[name].astype(np.float64) - expected)
            allowed = share * np.abs(expected) + training_pass.slack.get(name, 0.0) + least
            if not (gap <= allowed).all():
                worst = np.unravel_index(np.argmax(np.where(gap <= allowed, 0.0, gap)), gap.shape)
                values = f"got {float(training_pass.gradients[name][worst]):.6g}, want {float(expected[worst]):.6g}"
                values += f" at {[int(i) for i in worst]}"
                return f"gradient.{name}", f"gradient of {name} {values}, by the mask of the backward pass"
        loss = training_pass.loss
        if loss is not None and abs(loss - computed.loss) > share * computed.loss:
            return "loss", f"loss got {loss:.6g}, want {computed.loss:.6g} by the mask of the backward pass"
        return None


class _Computed:
    """Outputs, loss and gradients of a pass with given masks, in float64.

    Attributes:
        outputs: (items, units), by head.
        gradients: gradients of the loss, by canonical name.
        loss: the mean over the items, summed over heads.
        terms: number of terms of the longest chain of sums that a value goes through.
    """

    def __init__(self, case: MaskedCase, training_pass: TrainingPass, masks: list[DropoutMask]) -> None:
        drawn = case.drawn
        weights = {name: value.astype(np.float64) for name, value in training_pass.weights.items()}
        rows = np.concatenate([drawn.rows(micro) for micro in training_pass.micros])
        factor = {path: mask / (1.0 - rate) for path, rate, mask in masks}
        items, (last, _, _) = len(rows), list(drawn.model.shapes())[-1]
        entered: list[tuple[str, Array]] = []
        x, self.terms = weights["0.weight"][rows], items * rows.shape[1]
        for path, layer, _ in drawn.model.shapes():
            match layer:
                case Dense() if path == "0":
                    x = x[:, 0] + weights.get("0.bias", 0.0)
                case Dense():
                    entered.append((path, x))
                    x = x @ weights[f"{path}.weight"] + weights[f"{path}.bias"]
                    self.terms += len(weights[f"{path}.weight"])
                case Dropout():
                    x = x * factor[path]
                case Heads() | Embedding():
                    pass
                case _:
                    x = x.reshape(items, -1)
        self.gradients: dict[str, Array] = {}
        self.outputs: dict[str, Array] = {}
        self.loss, back = 0.0, np.zeros_like(x)
        for head in drawn.model.heads.heads:
            name = f"{last}.{head.name}"
            y = self.outputs[head.name] = x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]
            self.loss += float(((y - TARGET) ** 2).mean(axis=1).sum() / items)
            slope = 2.0 * (y - TARGET) / (items * head.units)
            self.gradients |= {f"{name}.weight": x.T @ slope, f"{name}.bias": slope.sum(axis=0)}
            back += slope @ weights[f"{name}.weight"].T
            self.terms += x.shape[1] + head.units
        for path, layer, shape in reversed(list(drawn.model.shapes())[:-1]):
            match layer:
                case Dropout():
                    back = back.reshape(items, *shape) * factor[path]
                case Dense() if path != "0":
                    _, entering = entered.pop()
                    self.gradients |= {f"{path}.weight": entering.T @ back, f"{path}.bias": back.sum(axis=0)}
                    back = back @ weights[f"{path}.weight"].T
                    self.terms += layer.units
                case Dense() | Embedding():
                    table = np.zeros_like(weights["0.weight"])
                    np.add.at(table, rows.reshape(-1), back.reshape(rows.size, -1))
                    self.gradients["0.weight"] = table
                    self.gradients |= {"0.bias": back.sum(axis=0)} if "0.bias" in weights else {}


def _select_by_prefix(observation: Observation, beginning: str) -> dict[str, Array]:
    return {name.removeprefix(beginning): v for name, v in observation.items() if name.startswith(beginning)}


@st.composite
def draw_masked_case(draw: st.DrawFn, framework: Framework) -> MaskedCase:
    """Draw a program with at least two training passes."""
    drawn = draw(_models())
    recipe = draw(_recipes(framework, drawn))
    first, last = draw(_passes(drawn, recipe)), draw(_passes(drawn, recipe))
    steps = draw(st.lists(_steps(framework, drawn, recipe, first), min_size=2, max_size=MOST_STEPS))
    long = [2**32] * 2 if generative_settings(framework).seed_bits > 32 else []
    stride = draw(st.sampled_from([*STRIDES, *long]))
    return MaskedCase(drawn, recipe, (StartAgain(), first, *(verb for step in steps for verb in step), last), stride)


@st.composite
def _models(draw: st.DrawFn) -> RevealingModel:
    """Draw a model with a mask for each sample, each place of a sequence, or each of two layers of one sample."""
    width = draw(st.sampled_from([1, 2, 3, 5, 6, 7, 8, 9, 13, 31, 33, 40, 47, 64]))
    rate = st.sampled_from(RATES)
    kind = draw(st.sampled_from(["vectors", "vectors", "sequences", "deep"]))
    sample: tuple[int, ...] = (ROWS,)
    layers: tuple[Layer, ...] = (Dense(width, bias=draw(st.booleans())), Dropout(draw(rate)))
    if kind == "sequences":
        sample = (draw(st.integers(1, 4)),)
        layers = (Embedding(ROWS, width), Dropout(draw(rate)), Flatten())
    if kind == "deep":
        units = width if draw(st.booleans()) else draw(st.sampled_from([7, 40, 47]))
        layers = (*layers, Dense(units), Dropout(draw(rate)))
    names = ("a", "b") if draw(st.integers(0, 3)) == 0 else ("a",)
    heads = Heads(tuple(Head(name, draw(st.sampled_from([1, 2, 3]))) for name in names))
    losses: tuple[tuple[str, LossKind], ...] = tuple((name, "squared_error") for name in names)
    return RevealingModel((*layers, heads), sample, losses, exact=False, seed=draw(st.integers(0, 9)))


@st.composite
def _recipes(draw: st.DrawFn, framework: Framework, drawn: RevealingModel) -> Recipe:
    """Draw a recipe under which nothing is clipped, overflows or underflows."""
    precisions = [p for p in PRECISIONS if p.level != "O3" and is_offered(framework, Recipe(precision=p))]
    recipe = Recipe(OPTIMIZER, draw(st.sampled_from([Precision(), Precision(), *precisions])))
    scalings: list[Scaling | None] = [None]
    scalings += [StaticScaling(8.0)] if supports(framework, Capability.STATIC_SCALING) else []
    scalings += [DynamicScaling(8.0, interval=1000)] if supports(framework, Capability.DYNAMIC_SCALING) else []
    recipe = recipe.replace(scaling=draw(st.sampled_from(scalings)))
    if not _deep(drawn) and supports(framework, Capability.ACCUMULATION) and draw(st.booleans()):
        recipe = recipe.replace(accumulation=draw(st.sampled_from([2, 3])))
    if supports(framework, Capability.RECOMPUTE) and draw(st.integers(0, 2)) == 0:
        segments = draw(st.integers(1, len(drawn.layers) - 1))
        recipe = recipe.replace(recompute=Recompute(segments, variant=draw(variants(framework, drawn))))
    if len(drawn.losses) > 1 and supports(framework, Capability.TWO_LOSSES) and draw(st.booleans()):
        recipe = recipe.replace(separate_losses=True)
    if not is_offered(framework, recipe):
        recipe = Recipe(OPTIMIZER)
    return recipe.replace(seed=draw(st.integers(0, 3)))


def _deep(drawn: RevealingModel) -> bool:
    """Return whether the model has several dropouts, whose masks only a window of a single sample reveals."""
    return sum(isinstance(layer, Dropout) for layer in drawn.layers) > 1


@st.composite
def _windows(draw: st.DrawFn, drawn: RevealingModel, count: int) -> tuple[GeneratedBatch, ...]:
    """Draw micro-batches of one size, no two of which use the same row."""
    most = ROWS // (count * drawn.places)
    size = 1 if _deep(drawn) else draw(st.integers(1, min(most, 8)))
    start = draw(st.integers(0, ROWS - 1))
    return tuple(GeneratedBatch(size, start + index * size * drawn.places) for index in range(count))


@st.composite
def _passes(draw: st.DrawFn, drawn: RevealingModel, recipe: Recipe) -> Verb:
    """Draw a training pass: the gradients of a window, or an update."""
    if draw(st.booleans()):
        return Gradients(draw(_windows(drawn, draw(st.integers(1, recipe.accumulation)))))
    return Train(draw(_windows(drawn, recipe.accumulation)))


@st.composite
def _steps(
    draw: st.DrawFn, framework: Framework, drawn: RevealingModel, recipe: Recipe, first: Verb
) -> tuple[Verb, ...]:
    """Draw a training pass, a verb that must not affect masks, or a new run that begins with the same pass."""
    kinds = ["pass"] * 4 + ["again", "predict"]
    kinds += ["restore"] * 2 if supports(framework, Capability.CHECKPOINT) else []
    kinds += ["trace"] if supports(framework, Capability.TRACE) and recipe.recompute is None else []
    kinds += ["many-updates"] if recipe.accumulation == 1 and draw(st.integers(0, 3)) == 0 else []
    kinds += ["many-passes"] if draw(st.integers(0, 3)) == 0 else []
    kinds += ["bytes"] if supports(framework, Capability.SAVED_BYTES) else []
    scopes = scope_formats(framework)
    kinds += ["scope"] if scopes else []
    kinds += ["skip"] * 2 if isinstance(recipe.scaling, DynamicScaling) else []
    one = draw(_windows(drawn, 1))[0]
    match draw(st.sampled_from(kinds)):
        case "pass":
            return (draw(_passes(drawn, recipe)),)
        case "again":
            return (StartAgain(), first)
        case "skip":
            spoilt = (replace(micro, spoilt=math.inf) for micro in draw(_windows(drawn, recipe.accumulation)))
            return (Train(tuple(spoilt)), draw(_passes(drawn, recipe)))
        case "predict":
            return (Predict(replace(one, size=draw(st.integers(1, 3)))),)
        case "restore":
            return (Save(), Restore(0, draw(st.sampled_from(_INTO))))
        case "trace":
            return (TraceLayers(one),)
        case "bytes":
            return (CountBytes(one),)
        case "many-updates":
            return (Train((one,), times=MANY_UPDATES),)
        case "many-passes":
            return (Gradients((one,), times=MANY_UPDATES),)
        case _:
            return (OpenScope(draw(st.sampled_from(scopes))),)
