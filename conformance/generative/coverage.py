"""Coverage of generated cases: features, pairs of features, sequences of verbs, clauses, and what was never drawn.

    python -m tools drawn                       what the profile ci draws for the reference
    python -m tools drawn --framework torch     the same for another framework, which has to be installed
    python -m tools drawn --seed 3

Nothing runs: the same cases are generated again from the seed.
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise, product
from typing import get_args

from conformance.checks.subject import supports
from conformance.generative.masks import MaskedCase
from conformance.generative.programs import variations
from conformance.generative.programs.case import GeneratedCase
from conformance.generative.programs.features import features, word
from conformance.generative.programs.recipes import PRECISIONS, is_offered
from conformance.generative.programs.triage import reachable
from conformance.generative.verdicts import LAWS
from conformance.known_failures.entries import Exclusion
from conformance.known_failures.reading import known_of
from conformance.search import Search, generative_settings
from conformance.spec.clauses import load_clauses
from conformance.techniques import load_techniques
from fixtures.model import Again, Layer, UserFunction
from fixtures.recipe import Recipe
from frameworks.contract import Framework, MissingDevice
from frameworks.operations import CATALOGUE
from frameworks.registry import UnknownFramework, load

FIELDS: Mapping[str, tuple[str, ...]] = {
    "precision": ("precision=O0", *(f"precision={precision.label}" for precision in PRECISIONS)),
    "optimizer": tuple(f"optimizer={name}" for name in ("SGD", "Momentum", "Adam", "AdamW")),
    "scaling": tuple(f"scaling={name}" for name in ("none", "static", "dynamic", "disabled")),
    "accumulation": ("accumulation=1", "accumulation>1"),
    "recompute": ("recompute",),
    "clip": ("clip",),
    "schedule": ("schedule",),
    "groups": ("groups=2", "optimizers=2"),
    "losses": ("separate-losses",),
    "average": ("average",),
    "offload": ("offload=host", "offload=disk"),
    "ranks or codes": (*(f"ranks={level}" for level in ("replicated", "optimizer", "gradients", "full")), "aware"),
    "values": ("values=exact", "values=rounded"),
}
"""Features of a recipe and of a model's values, by field; features of different fields can occur together."""
MODELS = (
    *(f"layer={kind.__name__}" for kind in get_args(Layer) if kind not in (Again, UserFunction)),
    *("loss=squared_error", "loss=cross_entropy", "head=compute", "head=float64", "heads=1", "heads=2"),
    *("token-ids", "token-level", "attention=heads-as-places"),
    *("parameter=large", "parameter=one-element", "parameter=odd", "parameters=few"),
    *("weights=large", "weights=small", "weights=offset", "inputs=far-from-zero"),
)
VERBS = (
    *("Accumulate", "Apply", "Flush", "Train", "ApplyGradients", "Discard"),
    *("Gradients", "Predict", "PredictAveraged", "Save"),
    *(f"Restore.{into}" for into in ("same", "fresh", "used", "predicted", "skipped", "stopped")),
    *("RestoreDamaged", "DamageOffloaded", "StartAgain", "StartAgain.onward", "TraceLayers", "CountBytes"),
    *(f"WrongWidth.{way}" for way in ("accumulate", "update", "gradients", "predict", "averaged", "trace", "bytes")),
    "OpenScope",
)
DATA = (
    *(f"feed={kind}" for kind in ("zero", "tiny", "ordinary", "large", "huge", "inf", "-inf", "nan")),
    *(f"feed={kind}" for kind in ("unscaled-by-hand", "unscaled-twice", "poisoned", "often", "missing", "nothing")),
    "train=often",
    "window=optimizer-without-gradient",
    *(f"mask={kind}" for kind in ("none", "ragged", "holes", "empty")),
    *(f"inputs={kind}" for kind in ("large", "small", "subnormal", "constant", "infinite")),
    *("window=ragged", "window=unequal-items", "targets=missing"),
    *("batch=one-sample", "batch=many", "batch=width", "break=after-a-step", "normalised=one-value"),
)
OTHERS = (
    *("epsilon=default", "epsilon=tiny", "state=8-bit"),
    *("momentum=inexact", "weight-decay=inexact", "average=inexact", "rate=inexact"),
    *("scaling=factors", "scaling=uneven-scale", "scaling=unequal-factors"),
    *("under=other-ranks", "under=other-offload"),
    *("recompute.depth=1", "recompute.depth=2", "recompute.uneven", "seed=64-bit"),
    *(f"mid-window={verb}" for verb in ("Predict", "PredictAveraged", "Save", "TraceLayers", "CountBytes")),
)
OPERATIONS = (
    *(f"operation={name}" for name in CATALOGUE),
    *(f"operands={kind}" for kind in ("constant", "empty", "large", "mixed", "offset", "one-term", "small", "special")),
    "scope=lists",
    "scope=nested",
)

CODES = tuple(word for technique in load_techniques() for word in technique.features)

SIZES = ((1, 1), (2, 9), (10, 99), (100, 99_999), (100_000, math.inf))
"""Ranges of the number of values of a parameter, both ends included."""


@dataclass
class GeneratedCounts:
    """Counts of generated cases.

    Attributes:
        programs: number of cases.
        features: number of instances of laws, by feature.
        pairs: number of programs, by pair of features of two fields.
        steps: number of programs, by a verb and the one right after it.
        sizes: number of parameters, by their number of values.
    """

    programs: int = 0
    features: Counter[str] = field(default_factory=Counter)
    pairs: Counter[frozenset[str]] = field(default_factory=Counter)
    steps: Counter[tuple[str, str]] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)

    def add(self, instance: variations.Instance) -> None:
        """Count an instance of a law."""
        self.features.update(instance.words())
        for case in _cases(instance):
            self._add(case)

    def _add(self, case: GeneratedCase) -> None:
        case_features = features(case)
        self.programs += 1
        inside = [word for names in FIELDS.values() for word in names if word in case_features]
        self.pairs.update(frozenset(pair) for pair in combinations(inside, 2))
        self.steps.update({(word(a), word(b)) for a, b in pairwise(case.program)})
        self.sizes.update(math.prod(shape) for shape in case.drawn.model.parameter_shapes().values())


def _cases(instance: variations.Instance) -> tuple[GeneratedCase, ...]:
    match instance:
        case variations.SecondRun(case=case, first=first):
            return (case, first)
        case variations.Elsewhere(cases=cases):
            return cases
        case variations.Program() | variations.RecomputedCase() | variations.ScaledCase() | MaskedCase():
            return (instance.case,)
        case variations.ResumedCase() | variations.CutWindows():
            return (instance.case,)
        case _:
            return ()


def draw_cases(framework: Framework, excluded: Collection[Exclusion] = (), seed: int = 0) -> GeneratedCounts:
    """Return the counts for the cases of the profile "ci" at a seed, without running them."""
    counts, laws = GeneratedCounts(), generative_settings(framework)
    for law in LAWS.values():
        if not supports(framework, *law.needs):
            continue
        strategy = law.instances(framework, excluded)
        for part in range(law.parts):
            search: Search[variations.Instance, None] = Search(counts.add, law.enough)
            search.run(strategy, law.count(laws), law.seed(seed, part), 0.0)
    return counts


def _fields(framework: Framework) -> dict[str, list[str]]:
    """Return features by field of a recipe, without precisions that the framework does not declare."""
    refused = {f"precision={p.label}" for p in PRECISIONS if not is_offered(framework, Recipe(precision=p))}
    return {name: [word for word in values if word not in refused] for name, values in FIELDS.items()}


def _kinds(framework: Framework) -> dict[str, list[str]]:
    """Return every feature that can be generated, by kind."""
    return {
        "recipes": [*(word for values in _fields(framework).values() for word in values), *OTHERS],
        "models": [*MODELS],
        "verbs": [*VERBS],
        "data": [*DATA],
        "operations": [*OPERATIONS],
        "codes": [*CODES],
    }


def never(counts: GeneratedCounts, framework: Framework) -> dict[str, list[str]]:
    """Return the features and pairs that were never generated, by kind."""
    missing = {
        kind: [word for word in values if not counts.features[f"verb={word}" if kind == "verbs" else word]]
        for kind, values in _kinds(framework).items()
    }
    fields = combinations(_fields(framework).values(), 2)
    pairs = [(a, b) for first, second in fields for a, b in product(first, second)]
    missing["pairs"] = [f"{a} with {b}" for a, b in pairs if not counts.pairs[frozenset((a, b))]]
    return missing


def table(counts: GeneratedCounts, framework: Framework) -> str:
    """Return the counts as Markdown: how many features of each kind were generated, and which never."""
    missing = never(counts, framework)
    totals = {kind: len(values) for kind, values in _kinds(framework).items()}
    lines = [
        f"{framework.name}: {counts.programs} programs, {sum(counts.steps.values())} times a verb after another.",
        "",
        "| kind | drawn | never |",
        "|---|---|---|",
    ]
    for kind, total in totals.items():
        lines.append(f"| {kind} | {total - len(missing[kind])} of {total} | {_join_names(missing[kind])} |")
    met = sum(1 for count in counts.pairs.values() if count)
    lines.append(f"| pairs of two fields | {met} of {met + len(missing['pairs'])} | {_join_names(missing['pairs'])} |")
    lines.append(f"| verb after verb | {len(counts.steps)} | |")
    for low, high in SIZES:
        count = sum(n for size, n in counts.sizes.items() if low <= size <= high)
        name = f"{low}" if low == high else f"{low} or more" if high == math.inf else f"{low} to {int(high)}"
        lines.append(f"| parameters of {name} values | {count} | |")
    return "\n".join(lines)


def _join_names(names: Sequence[str]) -> str:
    return "; ".join(f"`{word}`" for word in names) or "-"


def beyond_drawing() -> list[str]:
    """Return binding clauses that no failure of a generated program breaks: only their own tests judge them."""
    drawn_for = reachable() | LAWS.keys()
    return [clause.id for clause in load_clauses().values() if clause.level.judged and clause.id not in drawn_for]


def main(arguments: Sequence[str]) -> int:
    """Print what is drawn for a framework, and return the exit status."""
    what = "Show which features the generated cases cover."
    parser = argparse.ArgumentParser(prog="python -m tools drawn", description=what)
    parser.add_argument("--framework", default="reference", metavar="NAME", help="adapter whose recipes are generated")
    parser.add_argument("--mode", default=None, metavar="NAME", help="mode of the adapter (default: its first)")
    parser.add_argument("--seed", default=0, type=int, metavar="N", help="seed of the run")
    options = parser.parse_args(arguments)
    try:
        framework = load(options.framework, "cpu", options.mode)
    except (UnknownFramework, MissingDevice) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    print(table(draw_cases(framework, known_of(framework).exclusions, options.seed), framework))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
