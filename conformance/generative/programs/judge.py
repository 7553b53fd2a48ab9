"""Judges a case: compares its play on the framework with the oracle's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

from conformance.checks.evidence import same_bits
from conformance.checks.subject import Subject
from conformance.generative.programs.case import (
    Accumulate,
    Apply,
    ApplyGradients,
    CountBytes,
    DamageOffloaded,
    GeneratedCase,
    Gradients,
    OpenScope,
    Predict,
    Restore,
    Save,
    StartAgain,
    TraceLayers,
    Train,
    Verb,
    WrongWidth,
    step_text,
)
from conformance.generative.programs.compare import Mismatch, first_difference
from conformance.generative.programs.ensemble import Ensemble
from conformance.generative.programs.executor import Play, PlayFailed
from conformance.generative.programs.subject_executor import SubjectExecutor
from conformance.search.adapter_settings import GenerativeSettings
from conformance.search.arrays import Observation, canonical, ends_by_itself
from conformance.search.properties import Failure
from fixtures.layers import BatchNorm
from fixtures.recipe import DynamicScaling, StaticScaling

Judge = Callable[[GeneratedCase], Failure | None]


def play(subject: Subject, case: GeneratedCase) -> Play:
    """The case on the framework under test.

    Raises:
        PlayFailed: a verb raised.
        Unsupported: the framework refuses the recipe.
    """
    with TemporaryDirectory() as folder:
        return SubjectExecutor(subject, case, Path(folder)).play()


def play_in_turn(subject: Subject, *cases: GeneratedCase) -> list[Play]:
    """The cases on the framework under test, one verb of each in turn; they offload to files in one folder.

    Raises:
        PlayFailed: a verb raised.
        Unsupported: the framework refuses a recipe.
    """
    with ExitStack() as folders:
        offloaded = Path(folders.enter_context(TemporaryDirectory()))
        saves = [Path(folders.enter_context(TemporaryDirectory())) for _ in cases]
        players = [SubjectExecutor(subject, case, folder, offloaded) for case, folder in zip(cases, saves, strict=True)]
        rounds = list(zip_longest(*(executor.steps() for executor in players)))
    return [Play(tuple(each[i] for each in rounds[: len(case.program)])) for i, case in enumerate(cases)]


def against_the_oracle(subject: Subject, laws: GenerativeSettings, case: GeneratedCase) -> Failure | None:
    """The first difference between the framework's play and the oracle's."""
    try:
        measured = play(subject, case)
    except PlayFailed as failed:
        return raised(failed)
    ensemble = ensemble_of(subject, case, measured)
    if (stray := _leaked(case, measured) or _reformatted(case, measured) or _moved(case, measured)) is not None:
        return stray
    observations = canonical_play(measured, laws, case).observations
    apart = first_difference(observations, ensemble, not_judged(subject, laws, case, ensemble))
    return None if apart is None else failure_of(case, ensemble, apart)


def _leaked(case: GeneratedCase, measured: Play) -> Failure | None:
    """The first verb after which a process-wide setting has changed."""
    first: Observation | None = None
    for place, observation in enumerate(measured.observations):
        if observation is None:
            continue
        settings = {name: value for name, value in observation.items() if name.startswith("global/")}
        first = settings if first is None else first
        for name, value in settings.items():
            if name not in first or not same_bits(value, first[name]):
                where = f"after step {place + 1}, {step_text(case.program[place])}"
                return Failure(place, name, False, f"{where}: {name} got {value}, want {first.get(name)} as before")
    return None


_STATE_PREFIXES = ("parameter/", "master/", "optimizer/", "buffer/", "scaler/")


def _reformatted(case: GeneratedCase, measured: Play) -> Failure | None:
    """The first verb after which a part of the state has changed its format."""
    first: Observation = {}
    for place, observation in enumerate(measured.observations):
        for name, value in (observation or {}).items():
            if name.startswith(_STATE_PREFIXES) and value.dtype != first.setdefault(name, value).dtype:
                was = first[name].dtype
                where = f"after step {place + 1}, {step_text(case.program[place])}"
                return Failure(place, name, False, f"{where}: {name} got {value.dtype}, want {was} as before")
    return None


def _moved(case: GeneratedCase, measured: Play) -> Failure | None:
    """The first read-only verb after which a part of the state has changed, bit for bit."""
    before: Observation | None = None
    for place, (verb, after) in enumerate(zip(case.program, measured.observations, strict=True)):
        if before is not None and after is not None and isinstance(verb, _LOOKS):
            left = _PASSES if isinstance(verb, _IN_TRAINING) else ()
            for name, value in after.items():
                if name.startswith(("result/", *left)) or name not in before or same_bits(value, before[name]):
                    continue
                text = f"after step {place + 1}, {step_text(verb)}, which only reads: {name} has changed"
                return Failure(place, name, False, text)
        before = after
    return None


_IN_TRAINING = (Gradients, TraceLayers, CountBytes)
_LOOKS = (Predict, Save, OpenScope, *_IN_TRAINING)
"""Verbs that update nothing; some pass through the model as in training."""
_PASSES = ("buffer/", "random/")
"""State that a training pass changes."""


def canonical_play(measured: Play, laws: GenerativeSettings, case: GeneratedCase) -> Play:
    """A play of the framework with canonical names."""
    slots = laws.slots(case.recipe.optimizer)
    return Play(tuple(None if each is None else canonical(each, slots) for each in measured.observations))


def ensemble_of(subject: Subject, case: GeneratedCase, measured: Play) -> Ensemble:
    """The oracle's plays of the same verbs, without recomputation and offload, which must have no effect."""
    plain = replace(case, recipe=subject.seeded(case.recipe).replace(recompute=None, offload=None))
    return Ensemble(subject.conventions, plain, measured.left_out, subject.seed)


def failure_of(case: GeneratedCase, ensemble: Ensemble, apart: Mismatch) -> Failure:
    """The failure for a difference."""
    skipped = ensemble.skipped(apart.place)
    where = f"after step {apart.place + 1} of {len(case.program)}, {step_text(case.program[apart.place])}"
    return Failure(apart.place, apart.name, skipped, f"{where}: {apart}")


def not_judged(
    subject: Subject, laws: GenerativeSettings, case: GeneratedCase, ensemble: Ensemble
) -> Mapping[int, frozenset[str]]:
    """Prefixes of names that are not compared with the oracle's, by the place of the verb.

    How many updates there were where one of two optimizers skips is an observation (`scaling.two-optimizers-rule`). No
    clause says whether a window without any gradient counts, nor which running statistics an average is evaluated with
    once they have moved since it did. Ranks show the accumulator of the first of them, whose part of a micro-batch
    depends on how many there are.
    """
    always = frozenset(laws.not_compared) | {"random/", "result/bytes"}
    if isinstance(case.recipe.scaling, StaticScaling):
        always |= _OF_MOVING_SCALES
    if case.recipe.optimizers > 1 and case.recipe.scaling is not None:
        always |= {"steps/steps"}
    counts = always | {"steps/steps", "steps/schedule"}
    moving = any(isinstance(layer, BatchNorm) for _, layer, _ in case.drawn.model.shapes())
    left: dict[int, frozenset[str]] = {}
    broken = apart = uncounted = others = False
    for place, verb in enumerate(case.program):
        broken = broken or isinstance(verb, WrongWidth)
        apart = ensemble.skipped(place) if isinstance(verb, Train) else apart or not isinstance(verb, _STILL)
        uncounted = uncounted or (isinstance(verb, ApplyGradients) and all(given.nothing for given in verb.window))
        left[place] = (counts if uncounted else always) | ({"buffer/"} if broken else set())
        if isinstance(verb, StartAgain):
            others = False
        elif isinstance(verb, Restore) and verb.into != "same" and place not in ensemble.left_out:
            others = verb.by_others(case.recipe)
        left[place] |= {"accumulator/"} if others else set()
        if isinstance(verb, ApplyGradients):
            left[place] |= {"result/micro_losses"}
        if isinstance(verb, Predict) and verb.averaged and moving and (apart or broken):
            left[place] |= {"result/output."}
        if _ends_early(subject, case, place, verb):
            left[place] |= _STATE
    return left


_OF_MOVING_SCALES = {"result/setting.growth", "result/setting.backoff", "result/setting.interval"}
"""Settings without effect on a static scale; a scaler that is kept from moving may report some."""
_STILL = (Predict, Save, OpenScope, DamageOffloaded)
"""Verbs that move no running statistics, whichever framework plays them."""
_STATE = {"parameter/", "master/", "moment/", "steps/", "average/", "accumulator/", "scaler/"}


def _ends_early(subject: Subject, case: GeneratedCase, place: int, verb: Verb) -> bool:
    """Whether the framework has ended its window by itself after this verb, and the oracle has not."""
    if not isinstance(verb, Accumulate):
        return False
    scaler = case.recipe.scaling
    if subject.conventions.scaler.counts == "micro-batches" and isinstance(scaler, DynamicScaling):
        return True
    later = case.program[place + 1 : place + 2]
    return ends_by_itself(subject.conventions) and bool(later) and isinstance(later[0], Apply)


def raised(failed: PlayFailed) -> Failure:
    """The failure for a verb that raised."""
    return Failure(failed.place, failed.name, False, str(failed))
