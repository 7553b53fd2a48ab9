"""A scenario, which compares recipes for one model and its data; its training, round by round, and its record."""

import hashlib
import math
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import get_args

import numpy as np

from conformance.checks.evidence import Abstention, Violation
from conformance.checks.outcome import conclude
from conformance.runner.identity import series, suite, variant
from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import OffloadedKind, Recipe
from frameworks.base import window_across_ranks
from frameworks.contract import Capability, Framework, PostTraining, QuantizedModel, Trainer, Unsupported, needs
from frameworks.registry import load
from results.record.model import CheckResult, ClauseText, Measurement, Record, TestVerdict, Trace
from results.record.reading import now

OFFLOADED: tuple[OffloadedKind, ...] = get_args(OffloadedKind)
"""Kinds that can be offloaded."""

SAVED, MODEL = "saved bytes", "model bytes"
"""Names of the bytes saved between forward and backward, and of the bytes that a model stores for prediction."""

REDUCED, SECONDS = "gradients reduced a window", "seconds a round"
"""Names of the number of gradients that a rank reduces in a window, and of the seconds of a round."""


@dataclass(frozen=True)
class Side:
    """One recipe of a scenario.

    Attributes:
        label: short name, such as "mixed float16".
        micro: samples in a micro-batch; 0 for the whole batch of a round.
        beside: label of the side that this one is compared with; "" for the scenario's first side.
        equal: both sides end with parameters of the same bits, unless a compiler may round them differently.
        whole: micro-batches at an epoch's end that fill no window are dropped; otherwise they form a shorter window.
    """

    label: str
    recipe: Recipe
    micro: int = 0
    beside: str = ""
    equal: bool = False
    whole: bool = False

    @property
    def ranks(self) -> int:
        """Number of ranks, 0 for none."""
        return 0 if self.recipe.ranks is None else self.recipe.ranks.count

    def windows(self, batch: Batch) -> tuple[Window, ...]:
        """Return the windows of a round's batch."""
        size, length = self.micro or len(batch), self.recipe.accumulation
        parts = [batch.part(start, min(start + size, len(batch))) for start in range(0, len(batch), size)]
        windows = [tuple(parts[start : start + length]) for start in range(0, len(parts), length)]
        return tuple(window for window in windows if len(window) == length or not self.whole)

    def needs(self, batch: Batch) -> tuple[Capability, ...]:
        """Return the additional capability, if any, for the windows of an epoch's last batch."""
        is_partial = any(len(window) < self.recipe.accumulation for window in self.windows(batch))
        return (Capability.PARTIAL_WINDOW,) if is_partial else ()


@dataclass(frozen=True)
class QuantizedSide(Side):
    """The quantized model of the trained side `beside`, or of the first side; it is not trained itself.

    Attributes:
        technique: one of `PostTraining`, calibrated with samples of the first round; "" converts a QAT model.
    """

    technique: str = ""


@dataclass(frozen=True)
class Quality:
    """The quality of a run on test data.

    Attributes:
        measure: returns the quality, from the outputs by head and the test batch.
        constant: returns the quality of the best answer that ignores the inputs, on the test batch.
        rising: whether higher is better.
    """

    label: str
    measure: Callable[[Mapping[str, Array], Batch], float]
    constant: Callable[[Batch], float]
    rising: bool


@dataclass(frozen=True)
class Setting:
    """A model with its data; `about` names the origin of data and initial weights."""

    model: Model
    train: Batch
    test: Batch
    about: str


@dataclass(frozen=True)
class Scenario:
    """Sides that start from the same weights and train on the same batches in the same order.

    Attributes:
        title: the comparison, in one sentence.
        source: the publication or guide.
        setting: makes model and data, the same in every process.
        sides: the first is the baseline; it has no ranks if another side has them.
        batch: samples of a round; every side trains on them before the next round begins.
        epochs: number of passes over the training data, as documented.
        learns_in: number of rounds needed to learn; shorter runs are not judged by their quality.
        shorter: rounds by device or mode ("cpu", "emulated") for which the documented number takes too long.
        modes: mode by framework, for frameworks that do not use their first mode.
        only: reason why frameworks missing in `modes` do not run the scenario; "" if they do.
        published: the figures of `source`, by side and quantity (a row of the table).
    """

    name: str
    title: str
    source: str
    setting: Callable[[], Setting]
    sides: tuple[Side, ...]
    batch: int
    epochs: int
    learns_in: int
    quality: Quality
    shorter: Mapping[str, int] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    only: str = ""
    published: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def shows_resident_bytes(self) -> bool:
        """Whether resident bytes between updates are measured, and not only saved activations."""
        return any(
            side.ranks or side.recipe.offload is not None or getattr(side.recipe.optimizer, "state_bits", 32) == 8
            for side in self.sides
        )

    @property
    def quantized(self) -> tuple[QuantizedSide, ...]:
        """The sides that quantize another side's model after its training."""
        return tuple(side for side in self.sides if isinstance(side, QuantizedSide))

    @property
    def side_groups(self) -> tuple[tuple[Side, ...], ...]:
        """The sides to train, in groups that are trained one after another; the first side is in each of them.

        A process has one number of ranks at a time, so the other sides of a group have the same number.
        """
        first, *others = (side for side in self.sides if not isinstance(side, QuantizedSide))
        counts = dict.fromkeys(side.ranks for side in others) or {0: None}
        return tuple((first, *(side for side in others if side.ranks == count)) for count in counts)

    @property
    def clause(self) -> str:
        """The scenario's name in a record."""
        return f"scenario.{self.name}"

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the sides."""
        return tuple(side.label for side in self.sides)

    def base(self, side: Side) -> str:
        """Return the label of the side that a side is compared with."""
        return side.beside or self.sides[0].label

    def rounds(self, setting: Setting) -> int:
        """Return the number of rounds of the documented epochs."""
        return self.epochs * -(-len(setting.train) // self.batch)

    def rounds_on(self, device: str, mode: str, setting: Setting) -> int:
        """Return the number of rounds to train in a mode on a device."""
        return min(self.rounds(setting), *(self.shorter.get(name, self.rounds(setting)) for name in (device, mode)))

    def fingerprint(self, side: Side, setting: Setting, rounds: int) -> str:
        """Return the hash of everything that determines a side's numbers, except the framework and the suite's code."""
        settings = (setting.model.layers, setting.model.losses, side, self.batch, rounds, setting.about)
        digest = hashlib.sha256(repr(settings).encode())
        for batch in (setting.train, setting.test):
            for array in (batch.inputs, *batch.targets.values()):
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]


def rank_bytes(kind: str) -> str:
    """Return the name of a rank's resident bytes of a kind ("parameter", "gradient", "optimizer")."""
    return f"{kind} bytes"


def offloaded_bytes(kind: str) -> str:
    """Return the name of the offloaded bytes of a kind; for activations, of the bytes offloaded in an update."""
    return f"{kind.removesuffix('s')} bytes away"


def resident_bytes(kind: str) -> str:
    """Return the name of the resident bytes of an offloaded kind in a run without offload."""
    return SAVED if kind == "activations" else rank_bytes(kind.removesuffix("s"))


def share_of(quantity: str, base: str) -> str:
    """Return the name of a quantity as a share of the same quantity of the side `base`."""
    return f"{quantity} ÷ {base}'s"


def accuracy(position: int | None = None) -> Quality:
    """Return the accuracy of the head "output": the share of labels with the largest output, or of one position."""

    def select(values: Array) -> Array:
        return values if position is None else values[:, position]

    def share(outputs: Mapping[str, Array], test: Batch) -> float:
        answers = select(outputs["output"]).astype(np.float64).argmax(axis=-1)
        return float(np.mean(answers == select(test.targets["output"])))

    def commonest(test: Batch) -> float:
        labels = select(test.targets["output"])
        return float(np.bincount(labels).max() / labels.size)

    return Quality("accuracy", share, commonest, rising=True)


def squared_error() -> Quality:
    """Return the squared error as a quality: averaged over the samples and summed over the heads."""

    def error(outputs: Mapping[str, Array], test: Batch) -> float:
        return float(sum(np.mean((outputs[name] - target) ** 2) for name, target in test.targets.items()))

    def spread(test: Batch) -> float:
        return float(sum(np.var(target) for target in test.targets.values()))

    return Quality("squared error", error, spread, rising=False)


SHARE = 10
"""The initial and the final loss are the medians of the first and of the last 1/SHARE of the updates."""

_SIGNATURES = {"loss": "loss-did-not-fall", "accuracy": "learned-nothing", "squared error": "learned-nothing"}
_RECORDED = {"method": "recorded, not judged"}
_SHORT = {"method": "recorded, not judged: the run was too short to learn"}

Watch = Callable[[range, str], Iterable[int]]
"""Iterates over the rounds and shows a progress bar with the label, like `conformance.cli.options.show_progress`."""


@dataclass(eq=False)
class SideRun:
    """The training of one side, and its results.

    Attributes:
        losses, scales, skipped: one value for each update; the scale is that after the update.
        seconds: one value for each round.
        control: seconds of the first side in the same rounds; empty for that side itself, and if it failed.
        quality: on the test batch after the last round, None if that was not reached.
        counts: counted bytes and reductions, by their names in a record.
        output_distance: relative distance of a quantized model's outputs on the test batch from the float ones.
        parameter_distance: distance of the final parameters from the base's, divided by the norm of the base's change.
        error: the exception that ended the side early.
        duration_s: includes the construction of the trainer.
    """

    framework: Framework
    setting: Setting
    side: Side
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    control: list[float] = field(default_factory=list)
    quality: float | None = None
    counts: dict[str, int] = field(default_factory=dict)
    output_distance: float | None = None
    parameter_distance: float | None = None
    error: Exception | None = None
    duration_s: float = 0.0
    trainer: Trainer = field(init=False)
    outputs: dict[str, Array] = field(init=False)
    parameters: dict[str, Array] = field(init=False)

    @property
    def curves(self) -> dict[str, tuple[float, ...]]:
        """Loss and scale of every update, for a trace."""
        scales = {} if self.side.recipe.scaling is None else {"scale": tuple(self.scales)}
        return {"loss": tuple(self.losses), **scales}

    def attempt(self, step: Callable[[], None]) -> None:
        """Run a step unless an earlier one failed; an error ends this side and no other."""
        if self.error is not None:
            return
        start = time.perf_counter()
        try:
            step()
        except Exception as error:  # whatever a framework raises is the side's result
            self.error = error
        self.duration_s += time.perf_counter() - start

    def begin(self, last_batch: Batch) -> None:
        """Make the trainer; the last batch of an epoch may need an additional capability."""
        self._require(*needs(self.side.recipe), *self.side.needs(last_batch))
        if any(head.format == "float64" for head in self.setting.model.heads.heads):
            self._require(Capability.FLOAT64_HEADS)
        self.trainer = self.framework.trainer(self.setting.model, self.side.recipe)

    def _require(self, *capabilities: Capability) -> None:
        for capability in capabilities:
            declared = self.framework.declares(capability)
            if not declared.supported:
                raise Unsupported(capability, declared.reason)

    def train(self, batch: Batch) -> None:
        """Train on the windows of one round; the time of a round without any is NaN."""
        windows = self.side.windows(batch)
        start = time.perf_counter() if windows else math.nan
        updates = [self.trainer.update(window) for window in windows]
        self.seconds.append(time.perf_counter() - start)
        self.losses += [float(update.loss) for update in updates]
        self.scales += [float(update.scale_after) for update in updates]
        self.skipped += [bool(update.skipped) for update in updates]

    def end(self, scenario: Scenario, batch: Batch) -> None:
        """Evaluate the side, and count its bytes on a round's batch, before the next group may end its ranks."""
        self.outputs = self.trainer.predict(self.setting.test.inputs)
        self.quality = scenario.quality.measure(self.outputs, self.setting.test)
        self.parameters = self.trainer.parameters()
        window = self.side.windows(batch)[0]
        if self.side.recipe.offload is not None:
            self._count_offloaded_bytes(window)
            return
        if not any(side.ranks for side in scenario.sides):
            self._count_saved_bytes(window[0])
        if self.side.ranks:
            self._count_rank_bytes(window)
        elif scenario.shows_resident_bytes:
            self._count_resident_bytes(window)

    def quantize(self, side: QuantizedSide, trained: "SideRun", scenario: Scenario, calibration: Array) -> None:
        """Quantize another side's trained model, and evaluate the result."""
        if trained.error is not None:
            raise trained.error
        self._require(Capability(f"quantization.{side.technique or 'convert'}"))
        model: QuantizedModel
        if side.technique:
            rule = self.framework.rule(PostTraining)
            model = rule.quantize(side.technique, self.setting.model, trained.parameters, (calibration,))
        else:
            model = trained.trainer.convert()
        outputs = model.predict(self.setting.test.inputs)
        self.quality = scenario.quality.measure(outputs, self.setting.test)
        self.counts[MODEL] = model.stored_bytes()
        exact = _flat({name: trained.outputs[name] for name in outputs})
        self.output_distance = float(np.linalg.norm(_flat(outputs) - exact) / np.linalg.norm(exact))

    def _count_saved_bytes(self, batch: Batch) -> None:
        """Count the bytes that a new trainer saves between forward and backward of a micro-batch."""
        if self.framework.declares(Capability.SAVED_BYTES).supported:
            fresh = self.framework.trainer(self.setting.model, self.side.recipe)
            self.counts[SAVED] = int(fresh.saved_bytes(batch))

    def _count_offloaded_bytes(self, window: Window) -> None:
        """Count offloaded bytes after one more update; for activations, bytes offloaded during it."""
        self.trainer.offloaded_bytes()
        self.trainer.update(window)
        self.counts |= {offloaded_bytes(kind): size for kind, size in self.trainer.offloaded_bytes().items()}

    def _count_resident_bytes(self, window: Window) -> None:
        """Count the bytes of whole parameters and gradients, and of the optimizer's moments."""
        parameters = self.trainer.parameters()
        self.counts |= {
            rank_bytes("parameter"): _size(parameters.values()),
            rank_bytes("gradient"): _size(self.trainer.gradients(window).values()),
            rank_bytes("optimizer"): _size(_moments(self.trainer.optimizer_state(), parameters)),
        }

    def _count_rank_bytes(self, window: Window) -> None:
        """Update a new rank group on a window; count its reductions, and the bytes of the rank that holds most."""
        with closing(self.framework.rank_group(self.setting.model, self.side.recipe)) as group:
            group.update(window_across_ranks(window, group.count))
            resident = group.resident_bytes()
            self.counts |= {
                rank_bytes(kind): max(sizes[kind] for sizes in resident) for kind in resident[0] if kind != "buffer"
            }
            if self.framework.declares(Capability.RANKS_COLLECTIVES).supported:
                self.counts[REDUCED] = max(counts["gradients"] for counts in group.collectives())


def train(framework: Framework, scenario: Scenario, setting: Setting, rounds: int, watch: Watch) -> tuple[SideRun, ...]:
    """Train every side that the framework declares, from the same weights, on the same batches.

    Args:
        rounds: number of rounds; the training data repeat as often as needed.
        watch: iterates over the rounds of a group of sides.
    """
    starts = range(0, len(setting.train), scenario.batch)
    batches = [setting.train.part(start, min(start + scenario.batch, len(setting.train))) for start in starts]
    rng = np.random.default_rng(0)
    runs: list[SideRun] = []
    for sides in scenario.side_groups:
        first, *others = group = [SideRun(framework, setting, side) for side in sides]
        for run in group:
            run.attempt(partial(run.begin, batches[-1]))
        if not runs or any(run.error is None for run in others):
            for number in watch(range(rounds), f"{scenario.name}, {framework.name}"):
                batch = batches[number % len(batches)]
                for run in (group[index] for index in rng.permutation(len(group))):
                    run.attempt(partial(run.train, batch))
        finished = others if runs else group
        for run in finished:
            run.attempt(partial(run.end, scenario, batches[0]))
        for run in others:
            run.control = [] if first.error else list(first.seconds)
        runs += finished
    _set_distances(scenario, setting, runs)
    by_label = {run.side.label: run for run in runs}
    for side in scenario.quantized:
        run = SideRun(framework, setting, side)
        run.attempt(partial(run.quantize, side, by_label[scenario.base(side)], scenario, batches[0].inputs))
        runs.append(run)
    if scenario.quantized and runs[0].error is None:
        runs[0].counts[MODEL] = _size(runs[0].parameters.values())
    return tuple(sorted(runs, key=lambda run: scenario.labels.index(run.side.label)))


def _flat(parameters: dict[str, Array]) -> Array:
    return np.concatenate([np.asarray(value, np.float64).ravel() for value in parameters.values()])


def _size(arrays: Iterable[Array]) -> int:
    return sum(array.nbytes for array in arrays)


def _set_distances(scenario: Scenario, setting: Setting, runs: Sequence[SideRun]) -> None:
    trained = {run.side.label: run for run in runs if run.error is None}
    for run in trained.values():
        base = trained.get(scenario.base(run.side))
        if base is not None and base is not run:
            end = _flat(base.parameters)
            distance = float(np.linalg.norm(_flat(run.parameters) - end))
            change = end - _flat(setting.model.weights(base.side.recipe.seed))
            run.parameter_distance = distance / float(np.linalg.norm(change)) if distance else 0.0


def _moments(state: dict[str, Array], parameters: dict[str, Array]) -> Iterator[Array]:
    """Yield the optimizer's moments of each parameter, without counters and averages.

    An 8-bit moment counts as its codes and absmax values, not as the values that they encode.
    """
    for name, value in state.items():
        slot, _, parameter = name.partition("/")
        coded = f"codes/{name}" in state or slot == "average"
        if slot in ("codes", "absmax") or (
            not coded and parameter in parameters and value.shape == parameters[parameter].shape
        ):
            yield value


class NoPart(Exception):
    """The framework does not run the scenario; the message says why."""


def load_framework(scenario: Scenario, name: str, device: str, mode: str) -> Framework:
    """Return the framework in a mode; "" selects the scenario's.

    Raises:
        NoPart: the scenario is for other frameworks.
        UnknownFramework, MissingDevice, ValueError: it cannot be loaded.
    """
    framework = load(name, device, mode or None)
    scenario_mode = scenario.modes.get(framework.name)
    if scenario_mode is None and scenario.only:
        raise NoPart(scenario.only)
    return framework if mode or scenario_mode in (None, framework.mode) else load(name, device, scenario_mode)


def run_scenario(scenario: Scenario, name: str, framework: Framework, limit: int, watch: Watch) -> Record:
    """Train every side and return the record.

    Args:
        name: name of the framework, as the user wrote it.
        limit: the largest number of rounds, 0 for all.

    Raises:
        Unsupported: the first side cannot be trained here.
    """
    started, start = now(), time.perf_counter()
    setting = scenario.setting()
    documented, all_rounds = scenario.rounds(setting), scenario.rounds_on(framework.device, framework.mode, setting)
    rounds = min(limit or all_rounds, all_rounds)
    runs = train(framework, scenario, setting, rounds, watch)
    if isinstance(runs[0].error, Unsupported):
        raise runs[0].error
    options = ["--scenario", scenario.name, *(["--rounds", str(rounds)] if rounds < all_rounds else [])]
    target = ["--mode", framework.mode, "--device", framework.device, name]
    repro = shlex.join(["python", "-m", "conformance", "run", *options, *target])
    length = f"{rounds:,} rounds of {scenario.batch:,} samples"
    return Record(
        suite=suite(name, (scenario.clause,), ()),
        series=series(name, framework),
        variant=variant(framework),
        started=started,
        seed=scenario.sides[0].recipe.seed,
        selection=" ".join(options),
        clauses={scenario.clause: ClauseText("MEASUREMENT", scenario.title, scenario.source, (), "scenario")},
        finished=now(),
        duration_s=round(time.perf_counter() - start, 3),
        status="complete",
        verdicts=tuple(verdict(scenario, run, rounds, repro) for run in runs),
        measurements=measurements(scenario, runs),
        traces=tuple(Trace(scenario.name, run.side.label, run.curves) for run in runs if run.losses),
        notes=(setting.about, length if rounds == documented else f"{length}, of {documented:,}"),
    )


def verdict(scenario: Scenario, run: SideRun, rounds: int, repro: str) -> TestVerdict:
    """Return the verdict on a side: a refusal with its reason, or whether it learned and met its promises."""
    is_short = rounds < scenario.learns_in
    # A compiler may round another program differently, but offload does not change the program.
    same_bits = run.side.equal and (run.side.recipe.offload is not None or not run.framework.conventions().compiled)
    checks = tuple(_checks(scenario, run, is_short, same_bits))
    failed = [check for check in checks if not check.passed]
    error = run.error
    if error is None and failed:
        texts = (f"{check.what}: {check.measured} where {check.expected} was expected" for check in failed)
        error = Violation(_SIGNATURES.get(failed[0].what, "parameters-differ"), "; ".join(texts))
    elif error is None and is_short and not same_bits:
        error = Abstention(f"{rounds} rounds are too few to learn in; {scenario.learns_in} are judged")
    result = conclude(run.framework, error, ())
    return TestVerdict(
        test=f"{scenario.clause}/{run.side.label}",
        clause=scenario.clause,
        outcome=result.outcome,
        signature=result.signature,
        message=result.message,
        checks=checks,
        reason=result.reason,
        link=result.link,
        setup_hash=scenario.fingerprint(run.side, run.setting, rounds),
        seed=run.side.recipe.seed,
        repro=repro,
        duration_s=run.duration_s,
    )


def _checks(scenario: Scenario, run: SideRun, is_short: bool, same_bits: bool) -> Iterator[CheckResult]:
    if run.losses:
        count = max(1, len(run.losses) // SHARE)
        initial, final = median(run.losses[:count]), median(run.losses[-count:])
        derivation = _SHORT if is_short else {"method": f"median of the first and of the last {count} updates"}
        yield CheckResult("loss", final, initial, f"below {initial:.4g}", is_short or final < initial, derivation)
    if run.losses and run.side.recipe.scaling is not None:
        yield CheckResult("skipped updates", sum(run.skipped), None, f"of {len(run.skipped)}", True, _RECORDED)
    if run.quality is not None:
        quality = scenario.quality
        constant = quality.constant(run.setting.test)
        better = run.quality > constant if quality.rising else run.quality < constant
        expected = f"{'above' if quality.rising else 'below'} {constant:.4g}"
        derivation = _SHORT if is_short else {"method": "the best answer that ignores the inputs"}
        yield CheckResult(quality.label, run.quality, constant, expected, is_short or better, derivation)
    base = scenario.base(run.side)
    if run.output_distance is not None:
        unit = {**_RECORDED, "unit": f"the 2-norm of {base}'s outputs"}
        yield CheckResult(f"distance from {base}'s outputs", run.output_distance, None, None, True, unit)
    if run.parameter_distance is not None:
        what = f"distance from {base}'s parameters"
        if same_bits:
            promise = {"method": "the same bits are promised"}
            yield CheckResult(what, run.parameter_distance, 0.0, "0", run.parameter_distance == 0.0, promise)
        else:
            unit = {**_RECORDED, "unit": f"the way that {base}'s went"}
            yield CheckResult(what, run.parameter_distance, None, None, True, unit)


def measurements(scenario: Scenario, runs: Sequence[SideRun]) -> tuple[Measurement, ...]:
    """Return, by side, counted quantities, and seconds of each round with the first side's as control."""
    result: list[Measurement] = []
    for run in runs:
        for name, count in run.counts.items():
            unit = "1" if name == REDUCED else "B"
            result.append(Measurement(scenario.clause, name, run.side.label, unit, (float(count),)))
        if run.error is None and run.control:
            pairs = [pair for pair in zip(run.seconds, run.control, strict=True) if all(map(math.isfinite, pair))]
            if pairs:
                times, control = zip(*pairs, strict=True)
                result.append(Measurement(scenario.clause, SECONDS, run.side.label, "s", times, control))
    return tuple(result)
