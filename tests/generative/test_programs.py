"""The laws: silent on the reference, failures that name a clause and can be pasted, exclusions, and what is drawn."""

import ast
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.checks.evidence import Abstention, Verdict, Violation
from conformance.checks.subject import Profile, Subject
from conformance.generative import coverage, paste, vocabulary
from conformance.generative.operation_strategies import WAYS
from conformance.generative.programs.case import (
    ApplyGradients,
    CountBytes,
    GeneratedCase,
    Predict,
    Restore,
    Save,
    Spike,
    SpikedGradient,
    StartAgain,
    Train,
    step_text,
)
from conformance.generative.programs.data import GeneratedBatch, GeneratedModel
from conformance.generative.programs.ensemble import Ensemble
from conformance.generative.programs.instances import Program
from conformance.generative.programs.judge import against_the_oracle, play
from conformance.generative.programs.rounding_freedom import NormsInParts, NotesKinks, OtherRange
from conformance.generative.programs.triage import reachable, triaged
from conformance.generative.registry import LAWS
from conformance.generative.verdicts import explore
from conformance.known_failures.entries import Exclusion
from conformance.known_failures.reading import load_known
from conformance.search.adapter_settings import generative_settings
from conformance.search.search import Search
from conformance.spec.clauses import load_clauses
from conformance.techniques.registry import TECHNIQUES
from fixtures.layers import Dense, Head, Heads
from fixtures.recipe import SGD, DynamicScaling, Precision, Recipe
from frameworks.contract import Framework
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.rounding import Nearest
from frameworks.reference.core.tape import taped
from frameworks.reference.core.tensor import Tensor
from frameworks.registry import built_in, load
from tests.support.suite_runs import ROOT
from tools.faults.catalogue import faults

MODEL = GeneratedModel((Dense(3), Heads((Head("a", 2),))), (5,), (("a", "squared_error"),))
WINDOW = (GeneratedBatch(2), GeneratedBatch(2, seed=1))
SCALED = Recipe(SGD(2.0**-4), scaling=DynamicScaling(initial=16.0, interval=2), accumulation=2)
INFINITE = SpikedGradient(1.0, (Spike(float("inf"), 0.0, 0.0),))
SKIPPED = GeneratedCase(MODEL, SCALED, (StartAgain(), Train(WINDOW), ApplyGradients((INFINITE, SpikedGradient(1.0)))))
RESUMED = GeneratedCase(
    MODEL,
    SCALED.replace(average=0.5),
    (StartAgain(), Train(WINDOW), Train(WINDOW), Save(), Train(WINDOW), Restore(), Predict(GeneratedBatch(1))),
)
ONWARD = GeneratedCase(MODEL, SCALED, (StartAgain(), Train(WINDOW), StartAgain(onward=True), Train(WINDOW)))
READ = GeneratedCase(
    MODEL, SCALED, (StartAgain(), Predict(GeneratedBatch(2)), Train(WINDOW), Predict(GeneratedBatch(2)))
)
NO_SHRINKING = Profile(shrinking_s=0.0)
FAULTS = {fault.label: fault.name for fault in faults() if fault.framework == "reference"}


def subject(name: str = "reference", seed: int = 0) -> Subject:
    """A framework by name, or a fault of tools/faults by class."""
    return Subject(load(FAULTS.get(name, name), "cpu"), seed, NO_SHRINKING)


@pytest.mark.parametrize("clause", LAWS)
def test_explore_of_the_reference_at_another_seed_passes(clause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "conformance.generative.verdicts.generative_settings", lambda f: replace(generative_settings(f), programs=48)
    )
    verdict = Verdict()
    explore(subject(seed=3), verdict, (), LAWS[clause])
    assert all(check.passed for check in verdict.checks)
    assert not verdict.checks[-1].measured.startswith("0 drawn")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fault", "case", "clause"),
    [
        ("SkipIsAnUpdateOfZeros", SKIPPED, "scaling.skip-is-atomic"),
        ("OverflowKeepsTheCount", SKIPPED, "scaling.automaton"),
        ("AverageIsNotSaved", RESUMED, "resume.bit-identical"),
        ("StartsFromZeros", RESUMED, "master.average-follows-updates"),
        ("OutputsAreReused", READ, "accumulation.evaluation-changes-nothing"),
    ],
)
def test_triaged_names_the_clause_that_a_fault_breaks(fault: str, case: GeneratedCase, clause: str) -> None:
    broken = subject(fault)
    laws = generative_settings(broken.framework)
    failure = against_the_oracle(broken, laws, case)
    assert failure is not None
    assert triaged(case, failure, lambda other: against_the_oracle(broken, laws, other)).clause == clause


def test_against_the_oracle_of_weights_that_are_not_copied_fails() -> None:
    broken = subject("GivenWeightsAreNotCopied")
    failure = against_the_oracle(broken, generative_settings(broken.framework), ONWARD)
    assert failure is not None
    assert failure.place == 3
    laws = generative_settings(subject().framework)
    assert [against_the_oracle(subject(), laws, case) for case in (SKIPPED, RESUMED, ONWARD, READ)] == [None] * 4


def test_explore_of_a_failure_gives_a_test_to_paste_and_the_same_one_for_a_seed() -> None:
    texts = []
    for _ in range(2):
        with pytest.raises(Violation) as raised:
            explore(subject("OverflowKeepsTheCount"), Verdict(), (), LAWS["laws.programs"], 2)
        texts.append(str(raised.value))
    assert texts[0] == texts[1]
    message, source = texts[0].split("\n\n", 1)
    assert re.match(r"after step \d+ of \d+, [a-z ]+( on [0-9 +]+ samples)?: ", message)
    assert raised.value.signature in load_clauses()
    names: dict[str, Any] = {}
    exec(compile(source, "pasted", "exec"), names)
    with pytest.raises(Violation) as again:
        names["test_example"](subject("OverflowKeepsTheCount"), Verdict())
    assert again.value.signature == raised.value.signature
    names["test_example"](subject(), Verdict())


def test_step_text_names_a_step() -> None:
    batches = tuple(GeneratedBatch(size, 1) for size in (4, 2))
    steps = (Train(batches), Train(batches[:1], cut=(3, 1)), Predict(batches[1]), CountBytes(batches[1]), Save())
    assert [step_text(step) for step in steps] == [
        "train on 4 + 2 samples",
        "train on 3 + 1 samples",
        "predict on 2 samples",
        "count bytes",
        "save",
    ]


@pytest.mark.parametrize(
    ("values", "asked", "kinked"),
    [
        ([1.0, 2.0**-20], True, True),
        ([1.0, 2.0**-20], False, False),
        ([1.0, 0.0], True, False),
        ([1.0, 0.5], True, False),
        ([np.inf, 1.0], True, False),
    ],
    ids=["next to nothing", "no slope asked for", "zero", "ordinary", "infinite"],
)
def test_a_rectifier_whose_operand_is_all_rounding_is_noted(values: list[float], asked: bool, kinked: bool) -> None:
    ops = NotesKinks(Nearest())

    def rectified(given: Any) -> Any:
        return ops.activation("relu", Tensor(given, "float32")).value

    if asked:
        taped(lambda values: [rectified(values["a"]).sum()], {"a": np.array(values)})
    else:
        rectified(np.array(values))
    assert ops.kinked == kinked


@pytest.mark.parametrize(("values", "even"), [([1.0, 3.0], True), ([10_549_407.0, 10_549_380.0], False)])
def test_a_member_takes_the_mean_of_normalised_values_for_zero(values: list[float], even: bool) -> None:
    ops, one, zero = NormsInParts(Nearest()), Tensor(np.ones(1), "float32"), Tensor(np.zeros(1), "float32")

    def normalised(given: Any) -> Any:
        return ops.batch_norm(Tensor(given, "float32"), one, zero, 1e-5, None)[0].value

    (y,), (pull,) = taped(lambda values: [normalised(values["a"])], {"a": np.array(values)[:, None]})
    slopes = np.array([[1e6], [-2e6]])
    result = pull(slopes)["a"]
    expected = (slopes - slopes.mean() - y * (slopes * y).mean()) / np.std(values)
    assert result.sum() == pytest.approx(expected.sum(), rel=0.01, abs=0.1)
    assert (abs(expected.sum()) > 1.0) != even


@pytest.mark.parametrize(("value", "overflowed"), [(70_000.0, True), (60_000.0, False), (np.inf, False)])
def test_what_only_float16_would_not_hold_is_noted(value: float, overflowed: bool) -> None:
    rounding = OtherRange(Nearest(), np.inf)
    assert rounding.round(np.array([value]), "float16")[0] == pytest.approx(value, rel=1e-3)
    assert rounding.overflowed == overflowed


def test_values_that_need_no_rounding_are_asked_for_to_the_bit() -> None:
    exact = GeneratedCase(MODEL, Recipe(SGD(2.0**-4)), (StartAgain(), Train((GeneratedBatch(2),))))
    ensemble = Ensemble(subject().conventions, exact, frozenset(), 0)
    for member in ensemble.members:
        for mine, other in zip(member.observations, ensemble.nearest.observations, strict=True):
            assert mine is not None
            assert other is not None
            assert all(np.array_equal(mine[name], other[name]) for name in other if name.startswith("parameter/"))


def test_play_twice_gives_the_same_observations() -> None:
    one, other = (play(subject(), RESUMED).observations for _ in range(2))
    for mine, again in zip(one, other, strict=True):
        assert mine is not None
        assert again is not None
        assert mine.keys() == again.keys()
        assert all(np.array_equal(mine[name], again[name], equal_nan=True) for name in mine if "global" not in name)


def test_instances_leave_out_what_an_exclusion_names() -> None:
    finding = load_known(["torch"]).findings[0]
    entry = Exclusion(finding, ("optimizer=Adam", "clip"))
    result: list[frozenset[str]] = []
    search: Search[Program, None] = Search(lambda program: result.append(program.words()))
    search.run(LAWS["laws.programs"].instances(subject().framework, (entry,)), 60, 0, 0.0)
    assert result
    assert not any({"optimizer=Adam", "clip"} <= words for words in result)


def test_instances_compute_words_once_for_all_exclusions(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Exclusion(load_known(["torch"]).findings[0], ("optimizer=Nothing",))
    asked: list[Program] = []
    words = Program.words
    monkeypatch.setattr(Program, "words", lambda program: asked.append(program) or words(program))
    drawn: list[Program] = []
    Search(drawn.append).run(LAWS["laws.programs"].instances(subject().framework, (entry,) * 3), 8, 0, 0.0)
    assert len(asked) == len(drawn) > 0


@pytest.mark.parametrize("clause", ["laws.processes", pytest.param("laws.programs", marks=pytest.mark.slow)])
def test_explore_with_nothing_left_to_draw_abstains(clause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "conformance.generative.verdicts.generative_settings", lambda f: replace(generative_settings(f), programs=48)
    )
    finding = load_known(["torch"]).findings[0]
    entry = Exclusion(finding, ("verb=StartAgain",))
    with pytest.raises(Abstention, match="excluded by a known defect"):
        explore(subject(), Verdict(), (entry,), LAWS[clause])


MODULES = [path.read_text("utf-8") for path in sorted((ROOT / "conformance").rglob("*.py"))]
SOURCES = "".join(text for text in MODULES if "def words(" in text or "def features(" in text)
"""The modules that state the features of what is drawn."""


LISTED = {
    *(word for words in vocabulary.FIELDS.values() for word in words),
    *(*vocabulary.MODELS, *vocabulary.DATA, *vocabulary.OTHERS, *vocabulary.OPERATIONS, *vocabulary.CODES),
    *(f"verb={name}" for verb in vocabulary.VERBS for name in (verb, verb.partition(".")[0])),
    *(f"{kind}={name}" for kind in ("operand", "scope") for name in ("float32", "float16", "bfloat16")),
    *(f"call={way}" for way in WAYS),
    *(f"activation={kind}" for kind in ("relu", "tanh")),
}


def stated() -> set[str]:
    """Features that modules state as literals, `NAME=VALUE`."""
    trees = [ast.parse(text) for text in MODULES if "def words(" in text or "def recipe_features(" in text]
    functions = [
        node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and (node.name == "words" or node.name.endswith("features"))
    ]
    literals = {
        node.value
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {text for text in literals if re.fullmatch(r"[a-z.-]+[=>][\w.-]+", text)}


def test_vocabulary_has_every_stated_feature() -> None:
    assert len(stated()) > 40
    assert stated() - LISTED == set()


@pytest.mark.parametrize("framework", sorted(built_in()))
def test_every_exclusion_is_stated_in_words_that_can_be_drawn(framework: str) -> None:
    for entry in load_known([framework]).exclusions:
        of_a_part = any(word.startswith("technique=") for word in entry.when)
        for word in entry.when:
            of_an_adapter = word.startswith(("recompute.variant=", "way=", "technique=")) or of_a_part
            parts = [f'f"{word.partition("=")[0]}={{' in SOURCES, f'"{word.partition("=")[2]}"' in SOURCES]
            spelt = word in LISTED or f'"{word}"' in SOURCES or all(parts) or of_an_adapter
            assert spelt, f"{entry.finding.id}: {word}"


def test_what_is_drawn_and_what_never_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    framework: Framework = ReferenceFramework("cpu")
    monkeypatch.setattr(coverage, "generative_settings", lambda f: replace(generative_settings(f), programs=8))
    few = coverage.drawn(framework)
    assert few.programs > 8
    assert sum(few.steps.values()) > 0
    assert coverage.never(few, framework)["pairs"]
    assert "| verbs |" in coverage.table(few, framework)


def test_every_clause_of_an_attribution_exists() -> None:
    assert reachable() <= load_clauses().keys()
    assert set(coverage.beyond_drawing()) <= load_clauses().keys() - reachable()


def test_techniques_name_the_clauses_that_their_cases_break() -> None:
    named = {clause for technique in TECHNIQUES for clause in technique.breaks}
    cases = (path.read_text("utf-8") for path in (ROOT / "conformance" / "techniques").glob("*/*cases.py"))
    broken = {clause for text in cases for clause in re.findall(r'breaking\("([^"]+)"\)', text)}
    assert broken
    assert broken <= named


def test_the_precision_of_a_pasted_case_is_the_one_that_was_drawn() -> None:
    case = GeneratedCase(MODEL, SCALED.replace(precision=Precision("O1", "float16")), (StartAgain(),))
    assert eval(repr(case), vars(paste)) == case
