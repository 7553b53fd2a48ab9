"""Coverage of generated cases: features, pairs of features, sequences of verbs, and clauses.

    python -m tools drawn                       what the profile ci draws for the reference
    python -m tools drawn --framework torch     for another framework, which has to be installed
    python -m tools drawn --seed 3

Nothing runs: the same cases are generated again from the seed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise, product

from conformance.generative import vocabulary
from conformance.generative.masks import MaskedCase
from conformance.generative.programs.case import GeneratedCase
from conformance.generative.programs.features import features, word
from conformance.generative.programs.instances import Instance, Program
from conformance.generative.programs.triage import reachable
from conformance.generative.programs.variations import (
    CutWindows,
    Elsewhere,
    RecomputedCase,
    ResumedCase,
    ScaledCase,
    SecondRun,
)
from conformance.generative.registry import LAWS
from conformance.known_failures.entries import Exclusion
from conformance.known_failures.reading import known_of
from conformance.search.adapter_settings import generative_settings
from conformance.search.properties import Search
from conformance.spec.clauses import load_clauses
from frameworks.contract import Framework, MissingDevice
from frameworks.registry import UnknownFramework, load

SIZES = ((1, 1), (2, 9), (10, 99), (100, 99_999), (100_000, math.inf))
"""Values of a parameter, from and to."""


@dataclass
class GeneratedCounts:
    """Counts of generated cases.

    Attributes:
        programs: how many.
        features: instances of laws by feature.
        pairs: programs by pair of features of two fields.
        steps: programs by a verb and the one right after it.
        sizes: parameters by their number of values.
    """

    programs: int = 0
    features: Counter[str] = field(default_factory=Counter)
    pairs: Counter[frozenset[str]] = field(default_factory=Counter)
    steps: Counter[tuple[str, str]] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)

    def add(self, instance: Instance) -> None:
        """Counts an instance of a law."""
        self.features.update(instance.words())
        for case in _cases(instance):
            self._add(case)

    def _add(self, case: GeneratedCase) -> None:
        words = features(case)
        self.programs += 1
        inside = [word for names in vocabulary.FIELDS.values() for word in names if word in words]
        self.pairs.update(frozenset(pair) for pair in combinations(inside, 2))
        self.steps.update({(word(a), word(b)) for a, b in pairwise(case.program)})
        self.sizes.update(math.prod(shape) for shape in case.drawn.model.parameter_shapes().values())


def _cases(instance: Instance) -> tuple[GeneratedCase, ...]:
    match instance:
        case SecondRun(case=case, first=first):
            return (case, first)
        case Elsewhere(cases=cases):
            return cases
        case Program(case=case) | RecomputedCase(case=case) | ScaledCase(case=case):
            return (case,)
        case ResumedCase(case=case) | CutWindows(case=case):
            return (case,)
        case MaskedCase():
            return (instance.case,)
        case _:
            return ()


def drawn(framework: Framework, excluded: Collection[Exclusion] = (), seed: int = 0) -> GeneratedCounts:
    """The cases of the profile "ci" at a seed, without running them."""
    counts, laws = GeneratedCounts(), generative_settings(framework)
    for law in LAWS.values():
        if not all(framework.declares(capability).supported for capability in law.needs):
            continue
        strategy = law.instances(framework, excluded)
        for part in range(law.parts):
            Search[Instance, None](counts.add, law.enough).run(strategy, law.count(laws), law.seed(seed, part), 0.0)
    return counts


def _fields(framework: Framework) -> dict[str, list[str]]:
    """Features by field of a recipe, without precisions that the framework does not declare."""
    precisions = vocabulary.offered_precisions(framework)
    return {
        name: [word for word in words if name != "precision" or word in precisions]
        for name, words in vocabulary.FIELDS.items()
    }


def _kinds(framework: Framework) -> dict[str, list[str]]:
    """Every feature that can be generated, by kind."""
    return {
        "recipes": [word for words in _fields(framework).values() for word in words] + [*vocabulary.OTHERS],
        "models": [*vocabulary.MODELS],
        "verbs": [*vocabulary.VERBS],
        "data": [*vocabulary.DATA],
        "operations": [*vocabulary.OPERATIONS],
        "codes": [*vocabulary.CODES],
    }


def never(counts: GeneratedCounts, framework: Framework) -> dict[str, list[str]]:
    """Features that were never generated, by kind."""
    missing = {
        kind: [word for word in words if not counts.features[_counted(kind, word)]]
        for kind, words in _kinds(framework).items()
    }
    fields = combinations(_fields(framework).values(), 2)
    pairs = [(a, b) for first, second in fields for a, b in product(first, second)]
    missing["pairs"] = [f"{a} with {b}" for a, b in pairs if not counts.pairs[frozenset((a, b))]]
    return missing


def _counted(kind: str, word: str) -> str:
    return f"verb={word}" if kind == "verbs" else word


def table(counts: GeneratedCounts, framework: Framework) -> str:
    """The counts as Markdown: how many features of each kind were generated, and which never."""
    missing = never(counts, framework)
    totals = {kind: len(words) for kind, words in _kinds(framework).items()}
    lines = [
        f"{framework.name}: {counts.programs} programs, {sum(counts.steps.values())} times a verb after another.",
        "",
        "| kind | drawn | never |",
        "|---|---|---|",
    ]
    for kind, total in totals.items():
        lines.append(f"| {kind} | {total - len(missing[kind])} of {total} | {_listed(missing[kind])} |")
    met = sum(1 for count in counts.pairs.values() if count)
    lines.append(f"| pairs of two fields | {met} of {met + len(missing['pairs'])} | {_listed(missing['pairs'])} |")
    lines.append(f"| verb after verb | {len(counts.steps)} | |")
    for low, high in SIZES:
        count = sum(n for size, n in counts.sizes.items() if low <= size <= high)
        name = f"{low}" if low == high else f"{low} or more" if high == math.inf else f"{low} to {int(high)}"
        lines.append(f"| parameters of {name} values | {count} | |")
    return "\n".join(lines)


def _listed(words: Sequence[str]) -> str:
    return "; ".join(f"`{word}`" for word in words) or "-"


def beyond_drawing() -> list[str]:
    """Binding clauses to which no failure of a generated program is attributed: only their own tests judge them."""
    drawn_for = reachable() | LAWS.keys()
    return [clause.id for clause in load_clauses().values() if clause.level.judged and clause.id not in drawn_for]


def main(arguments: Sequence[str]) -> int:
    """Prints what is drawn for a framework; returns the exit status."""
    what = "Show which features the generated cases cover."
    parser = argparse.ArgumentParser(prog="python -m tools drawn", description=what)
    parser.add_argument("--framework", default="reference", metavar="NAME", help="adapter whose recipes are generated")
    parser.add_argument("--mode", default=None, metavar="NAME", help="mode of the adapter (default: its first)")
    parser.add_argument("--seed", default=0, type=int, metavar="N", help="seed of the run")
    given = parser.parse_args(arguments)
    try:
        framework = load(given.framework, "cpu", given.mode)
    except (UnknownFramework, MissingDevice) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    print(table(drawn(framework, known_of(framework).exclusions, given.seed), framework))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
