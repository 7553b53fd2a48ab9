"""Attribute a failure to a clause, by the part of the case that it needs, the verb, and the part of the state."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from conformance.generative.programs.case import (
    ApplyGradients,
    CountBytes,
    DamageOffloaded,
    GeneratedCase,
    Gradients,
    OpenScope,
    Predict,
    Restore,
    RestoreDamaged,
    Save,
    StartAgain,
    TraceLayers,
    Verb,
    WrongWidth,
    open_windows,
)
from conformance.generative.programs.features import word
from conformance.generative.programs.judge import Judge
from conformance.search import Failure
from conformance.techniques import load_techniques
from fixtures.recipe import Adam, DynamicScaling, Precision, StaticScaling
from frameworks.contract import Unsupported

Simpler = Callable[[GeneratedCase], GeneratedCase]
LAW = "laws.programs"


@dataclass(frozen=True)
class BrokenClause:
    """A failure with the clause that it breaks.

    Attributes:
        clause: id of the clause.
        without: the part of the case whose removal makes the failure disappear, "" if there is none.
    """

    failure: Failure
    clause: str
    without: str

    def __str__(self) -> str:
        without = f"; without {self.without} it disappears" if self.without else ""
        return f"{self.failure.text}{without}; this breaks {self.clause}"


def _without(*kinds: type[Verb]) -> Simpler:
    """Return a function that removes verbs of these kinds from a case."""
    return lambda case: replace(case, program=tuple(v for v in case.program if not isinstance(v, kinds)))


def _with_recipe(**fields: object) -> Simpler:
    return lambda case: replace(case, recipe=case.recipe.replace(**fields))


def _no_loads_in_windows(case: GeneratedCase) -> GeneratedCase:
    """Return the case without saves and loads between two micro-batches of a window."""
    states = zip(case.program, open_windows(case.program), strict=True)
    verbs = (verb for verb, waiting in states if not (waiting and isinstance(verb, Save | Restore)))
    return replace(case, program=tuple(verbs))


def _as_saved(field: str) -> Simpler:
    """Return a function that sets the ranks or offload of every restore in a case to those of the case's recipe."""
    return lambda case: case.loaded_under(lambda under: replace(under, **{field: getattr(case.recipe, field)}))


def _wide_moments(case: GeneratedCase) -> GeneratedCase:
    """Return the case with 32-bit moments."""
    optimizer = case.recipe.optimizer
    wide = replace(optimizer, state_bits=32) if isinstance(optimizer, Adam) else optimizer
    return replace(case, recipe=case.recipe.replace(optimizer=wide))


def _one_run(case: GeneratedCase) -> GeneratedCase:
    """Return the case with all its verbs on one run."""
    return replace(case, program=(StartAgain(), *_without(StartAgain)(case).program))


CAUSES: dict[str, tuple[Simpler, str]] = {
    "the damaged file": (_without(RestoreDamaged), "resume.truncated-file"),
    "the damaged offloaded file": (_without(DamageOffloaded), "offload.disk-fault"),
    "the other number of ranks": (_as_saved("ranks"), "sharding.resumes-in-another-size"),
    "the other offload": (_as_saved("offload"), "offload.trains"),
    "the load inside a window": (_no_loads_in_windows, "resume.mid-window"),
    "loading": (_without(Save, Restore, RestoreDamaged), "resume.bit-identical"),
    "the first run": (_one_run, "laws.second-run"),
    "the exception": (_without(WrongWidth), LAW),
    "the scope": (_without(OpenScope), "autocast.scope-restored"),
    "other ways": (_with_recipe(ways=()), "composition.ways"),
    "ranks": (_with_recipe(ranks=None), "sharding.equals-whole"),
    "the offload": (_with_recipe(offload=None), "offload.same-bits"),
    "quantization": (_with_recipe(quantization=None), "quantization.aware-values"),
    "8-bit moments": (_wide_moments, "quantization.adam8-encoding"),
    "recomputation": (_with_recipe(recompute=None), "recompute.same-state"),
    "the average": (_with_recipe(average=None), "master.average-follows-updates"),
    "evaluation": (_without(Predict), "accumulation.evaluation-changes-nothing"),
    "the look at gradients": (_without(Gradients, TraceLayers, CountBytes), "accumulation.nothing-before-boundary"),
    "clipping": (_with_recipe(clip=None), ""),
    "scaling": (_with_recipe(scaling=None), ""),
    "the second optimizer": (_with_recipe(optimizers=1), "scaling.two-optimizers"),
    "groups": (_with_recipe(groups=1), "accumulation.groups-change-nothing"),
    "the schedule": (_with_recipe(schedule=None), "scaling.step-count-follows-updates"),
    "low precision": (_with_recipe(precision=Precision()), ""),
}
"""By a part of a case, in the order in which they are tried: a function that removes the part, and the clause that a
failure breaks that needs it; "" if this depends on the rest of the case."""


def find_broken_clause(case: GeneratedCase, failure: Failure, judge: Judge) -> BrokenClause:
    """Return the clause that a failure breaks."""
    for name, (remove, _) in CAUSES.items():
        without = remove(case)
        if without == case or not without.program:
            continue
        try:
            if judge(without) is None:
                return BrokenClause(failure, clause_of(case, failure, name), name)
        except Unsupported:  # without this part the framework refuses the case, which says nothing
            continue
    return BrokenClause(failure, clause_of(case, failure, ""), "")


_BY_VERB = {
    "Save": "resume.save-has-no-side-effects",
    "PredictAveraged": "master.average-is-evaluated",
    "TraceLayers": "composition.trace-is-the-pass",
    "CountBytes": "cost.bytes-repeat",
    "RestoreDamaged": "resume.truncated-file",
    "Discard": "scaling.abandoned-update-leaves-no-trace",
}
_BY_PART = {
    "result/learning_rate": "scaling.step-count-follows-updates",
    "steps/": "master.counts-every-update",
    "moment/": "master.moments-keep-precision",
    "average/": "master.average-follows-updates",
    "accumulator/": "accumulation.weighs-items",
}
_OTHERS = frozenset(
    (
        *(LAW, "composition.pairs", "resume.scaler-state", "sharding.replicas-equal"),
        *("accumulation.clips-only-what-is-larger", "accumulation.once-per-window"),
        *("autocast.evaluation-parity", "autocast.layers-honour-policy"),
        *("master.small-update-survives", "scaling.automaton", "scaling.defaults-are-declared"),
        *("scaling.detects-inf", "scaling.is-transparent"),
        *("scaling.overflow-path-does-not-raise", "scaling.reports-true-loss", "scaling.skip-is-atomic"),
        *("scaling.skip-is-reported", "scaling.static-is-constant", "scaling.unscales-before-clipping"),
    )
)
"""Clauses that `clause_of` names by no table."""


def clause_of(case: GeneratedCase, failure: Failure, cause: str) -> str:
    """Return a failure's clause by part of the state, verb, and `cause`, the part of the case that it needs."""
    verb, part = case.program[failure.place], failure.name
    if part == "apart":
        return "sharding.replicas-equal"
    if cause == "loading" and "scaler/" in part:
        return "resume.scaler-state"
    if cause == "the average" and isinstance(verb, Predict):
        return "master.average-is-evaluated"
    if cause and CAUSES[cause][1]:
        return CAUSES[cause][1]
    if part.startswith("global/"):
        return "autocast.settings-restored"
    if part == "aliased":
        return "resume.save-has-no-side-effects"
    if part == "loaded":
        return "resume.bit-identical"
    if part == "raised":
        return "scaling.overflow-path-does-not-raise" if isinstance(verb, ApplyGradients) else LAW
    match word(verb):
        case name if name in _BY_VERB:
            return _BY_VERB[name]
        case "Predict":
            changed = not part.startswith("result/")
            return "accumulation.evaluation-changes-nothing" if changed else "autocast.evaluation-parity"
        case "Accumulate" if not part.startswith(("result/", "accumulator/", "buffer/")):
            return "accumulation.nothing-before-boundary"
        case "Gradients" if not part.startswith(("result/", "buffer/")):
            return "accumulation.nothing-before-boundary"
        case "StartAgain" if "setting." in part:
            return "scaling.defaults-are-declared"
    return _of_update(case, failure, cause)


def _of_update(case: GeneratedCase, failure: Failure, cause: str) -> str:
    part, recipe = failure.name, case.recipe
    scaled = recipe.scaling is not None
    if part.startswith("scaler/") or part.rsplit("/", 1)[-1] in ("scale_before", "scale_after", "good_steps"):
        return "scaling.static-is-constant" if isinstance(recipe.scaling, StaticScaling) else "scaling.automaton"
    if part == "result/skipped":
        return "scaling.skip-is-reported" if not failure.skipped else "scaling.detects-inf"
    if failure.skipped:
        return "scaling.skip-is-atomic"
    if part.startswith(("result/loss", "result/micro_losses")):
        return "scaling.reports-true-loss" if cause == "scaling" else "accumulation.weighs-items"
    if (clause := next((c for prefix, c in _BY_PART.items() if part.startswith(prefix)), None)) is not None:
        return clause
    if cause == "clipping" or part == "result/gradient_norm":
        return "scaling.unscales-before-clipping" if scaled else "accumulation.clips-only-what-is-larger"
    if cause == "scaling" or isinstance(recipe.scaling, DynamicScaling):
        return "scaling.is-transparent"
    if recipe.accumulation > 1:
        return "accumulation.once-per-window"
    if cause == "low precision":
        return "autocast.layers-honour-policy" if recipe.precision.level == "O1" else "master.small-update-survives"
    return "composition.pairs"


def reachable() -> frozenset[str]:
    """Return the clauses to which a failure can be attributed."""
    techniques = (clause for technique in load_techniques() for clause in technique.breaks)
    causes = (clause for _, clause in CAUSES.values() if clause)
    return frozenset((*causes, *_BY_VERB.values(), *_BY_PART.values(), *_OTHERS, *techniques))
