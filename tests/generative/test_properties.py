"""`explore` and the generated cases of techniques: what they draw, and the failures that they report."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from conformance.checks.api import clause
from conformance.checks.evidence import Abstention, Verdict, Violation
from conformance.checks.subject import Profile, Subject
from conformance.search import explore, generative_settings
from conformance.techniques import quantized_models as quantized
from conformance.techniques.float8_training import DelayedCase, DelayedStep
from conformance.techniques.formats import (
    CastCall,
    CodedCalls,
    CodeProduct,
    FakeCall,
    Matrix,
    Packing,
    QuantizerCall,
    SpoiltCall,
)
from conformance.techniques.quantized_models import Convert, PredictBatch, QatCase, QuantizedCase, SaveAndLoad, SkipQat
from fixtures.arrays import Array
from fixtures.model import Activation, Dense, Head, Heads, Layer, Model
from frameworks.contract import Capability, Operand, Quantized, QuantRule, Unsupported
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.float8 import ReferenceDelayedProduct
from frameworks.reference.quantization.formats import ReferenceQuantizers
from frameworks.registry import adapter_file
from tests.support.suite_runs import hang_limit
from tools.faults.reference import formats, quantization

LIMIT = 17


@dataclass(frozen=True)
class Case:
    """Numbers whose `repr` is their source."""

    size: int
    items: tuple[int, ...] = ()


CASES = st.builds(Case, st.integers(0, 1000), st.lists(st.integers(0, 9), max_size=4).map(tuple))
Act = Callable[[Verdict, Case], None]


def subject(session_seed: int = 0, **profile: Any) -> Subject:
    """The reference at a seed and with a profile, by default without a limit of the time for shrinking."""
    return Subject(ReferenceFramework("cpu"), session_seed, Profile(**{"shrinking_s": hang_limit(), **profile}))


def run_exploration(
    explored: Subject, act: Act = lambda _verdict, _case: None, examples: int = 25
) -> tuple[list[Case], Verdict]:
    drawn: list[Case] = []

    @explore(CASES, examples)
    def law(subject: Subject, verdict: Verdict, case: Case) -> None:  # noqa: ARG001
        drawn.append(case)
        act(verdict, case)

    verdict = Verdict()
    law(explored, verdict)
    return drawn, verdict


@clause("recompute.same-loss")
@explore(CASES, examples=60)
def small(subject: Subject, verdict: Verdict, case: Case, variant: str) -> None:  # noqa: ARG001
    """A law that only cases smaller than `LIMIT` obey."""
    verdict.observe("variant", variant)
    verdict.holds(case.size < LIMIT, "the size is small", case.size, f"below {LIMIT}", "too-large")


def failure(test: Callable[..., None], **fixtures: Any) -> tuple[Violation, Verdict]:
    verdict = Verdict()
    with pytest.raises(Violation) as caught:
        test(subject(), verdict, **fixtures)
    return caught.value, verdict


def test_explore_of_a_failure_shrinks_it_and_gives_a_test_to_paste() -> None:
    violation, verdict = failure(small, variant="default")
    assert violation.signature == "too-large"
    assert f"Case(size={LIMIT}, items=())" in str(violation)
    assert [(check.passed, check.measured) for check in verdict.checks] == [(False, str(LIMIT))]
    assert verdict.observations == {"variant": "default"}
    message, pasted = str(violation).split("the smallest case found, as a test of its own:\n\n")
    names: dict[str, Any] = {"clause": clause, "Subject": Subject, "Verdict": Verdict, "Case": Case, "small": small}
    exec(compile(pasted, "pasted", "exec"), names)
    example = names["small_example"]
    assert [mark.args for mark in example.pytestmark] == [("recompute.same-loss",)]
    again, _ = failure(example, variant="default")
    assert (again.signature, str(again).strip()) == (violation.signature, message.strip())
    assert list(small.__signature__.parameters) == ["subject", "verdict", "variant"]
    assert small.__name__ == "small"


def test_explore_draws_by_seed_and_profile_and_counts_its_cases() -> None:
    first, again, other = (run_exploration(subject(seed))[0] for seed in (3, 3, 4))
    assert first == again != other
    assert len(first) == 25
    assert len(run_exploration(subject(factor=3))[0]) == 3 * 25
    assert run_exploration(subject(3, seed=4))[0] == other
    verdict = run_exploration(subject(), lambda verdict, case: verdict.observe("size", case.size))[1]
    assert verdict.checks[-1].passed
    assert verdict.checks[-1].measured == "25 cases"
    assert "size" in verdict.observations


@pytest.mark.parametrize("refusal", [Unsupported(Capability.CLIP, "no clipping"), Abstention("the control differed")])
def test_explore_of_refused_cases_is_refused(refusal: Exception) -> None:
    def act(_verdict: Verdict, _case: Case) -> None:
        raise refusal

    with pytest.raises(type(refusal)) as caught:
        run_exploration(subject(), act)
    assert caught.value is refusal


def test_explore_of_some_refused_cases_counts_the_others() -> None:
    def act(_verdict: Verdict, case: Case) -> None:
        if case.size % 2:
            raise Unsupported(Capability.CLIP, "no odd sizes")

    drawn, verdict = run_exploration(subject(), act, examples=25)
    assert sum(case.size % 2 == 0 for case in drawn) == 25
    assert verdict.checks[-1].measured == "25 cases"


def test_explore_of_an_exception_names_its_case() -> None:
    def act(_verdict: Verdict, case: Case) -> None:
        if case.size >= LIMIT:
            raise KeyError("lost")

    with pytest.raises(KeyError, match="lost") as caught:
        run_exploration(subject(), act, examples=60)
    assert f"Case(size={LIMIT}, items=())" in caught.value.__notes__[0]


def test_explore_of_a_failure_that_does_not_recur_reports_it() -> None:
    failed: list[Case] = []

    def act(verdict: Verdict, case: Case) -> None:
        if case.size >= LIMIT and not failed:
            failed.append(case)
            verdict.holds(False, "it holds once", signature="once")

    with pytest.raises(Violation, match=r"it holds once(.|\n)*Case\(") as caught:
        run_exploration(subject(), act, examples=60)
    assert caught.value.signature == "once"
    assert repr(failed[0]) in str(caught.value)


def test_explore_restores_settings_before_each_case() -> None:
    class Leaking(ReferenceFramework):
        """Leaves a trace open in every case."""

        opened = 0

        def global_state(self) -> dict[str, str]:
            return {"opened": str(self.opened)}

        def restore_global_state(self, state: Any) -> None:
            self.opened = int(state["opened"])

    leaking, result = Subject(Leaking("cpu")), []

    @explore(CASES, 10)
    def law(subject: Subject, verdict: Verdict, case: Case) -> None:  # noqa: ARG001
        result.append(subject.framework.global_state())
        leaking.framework.opened += 1

    law(leaking, Verdict())
    assert result == [{"opened": "0"}] * 10
    assert leaking.framework.global_state() == {"opened": "1"}


def test_explore_ends_shrinking_with_its_time() -> None:
    calls: list[Case] = []

    def act(verdict: Verdict, case: Case) -> None:
        calls.append(case)
        verdict.holds(case.size < LIMIT, "the size is small", signature="too-large")

    with pytest.raises(Violation) as caught:
        run_exploration(subject(shrinking_s=0.0), act, examples=60)
    first = next(case for case in calls if case.size >= LIMIT)
    assert {case for case in calls if case.size >= LIMIT} == {first}
    assert repr(first) in str(caught.value)


def test_generative_settings_of_an_adapter_by_its_path_are_those_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "adapter.toml").write_text("[laws]\nprograms = 7\n", "utf-8")
    (tmp_path / "adapter_with_laws.py").write_text("class Adapter:\n    name = 'mine'\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    adapter = import_module("adapter_with_laws").Adapter()
    assert generative_settings(adapter).programs == 7
    (tmp_path / "adapter.toml").write_text("[laws]\nprogram = 7\n", "utf-8")
    adapter_file.cache_clear()
    with pytest.raises(ValueError, match=r"mine: adapter.toml: \[laws\] has no key 'program'"):
        generative_settings(adapter)


MATRIX = QuantizerCall("int8-row", Matrix(3, 5, (0, 4), 0, "normal", 1))
SQUARE = QuantizerCall("int8-row", Matrix(4, 4, (0, 4), 0, "normal", 1))
ZEROS = QuantizerCall("uint8-tensor", Matrix(1, 1, (0,), 0, "zeros", 0))
SPOILT = SpoiltCall("int8-row", Matrix(3, 5, (0, 4), 0, "normal", 1), np.nan, 0.4, 0.9)
GROUPED = SpoiltCall("int4-group", Matrix(5, 130, (0,), 0, "normal", 1), np.inf, 0.4, 0.6)
FAKE = FakeCall("fake-int8-column", 4, 3, exact=True, beyond=300, seed=2)
CAST = CastCall("float8_e4m3fn", "float32", (33,), 3, seed=3)
CASTS = CastCall("float8_e5m2", "bfloat16", (5, 7), 1, seed=3)
SCALES = CastCall("float8_e8m0fnu", "float16", (99,), 3, seed=3)
PRODUCT = CodeProduct(("int8", "int8"), (2, 4097, 3), extreme=True, seed=4)
FLOAT_PRODUCT = CodeProduct(("float8_e4m3fn", "float8_e5m2"), (2, 33, 3), extreme=False, seed=4)
PACKED = Packing(5, 3, 0, seed=5)
CALLS = (MATRIX, ZEROS, SPOILT, GROUPED, FAKE, CAST, CASTS, SCALES, PRODUCT, FLOAT_PRODUCT, PACKED)
SPOILT_STEP = DelayedStep(((0, 0), (1, 0)), special=np.inf)
LONG = tuple(DelayedStep(((power, power),)) for power in [6] + [-3] * 18)
ZERO, TWO = DelayedStep(((0, 0),)), DelayedStep(((2, 2),))
QAT_MODEL = Model(
    "aware", (Dense(5), Activation("relu"), Heads((Head("output", 3),))), (8,), (("output", "squared_error"),)
)
TRAIN_QAT, LARGE = quantized.TrainQat((4, 3), (0, 1)), quantized.TrainQat((5, 2), (3, 2))


def with_parts(**parts: type) -> type[ReferenceFramework]:
    return type("Broken", (ReferenceFramework,), parts)


def find_failure(instance: Any, framework: type[ReferenceFramework] = ReferenceFramework) -> Any:
    subject = Subject(framework("cpu"))
    return instance.failure(subject, generative_settings(subject.framework))


def find_clause(instance: Any, framework: type[ReferenceFramework] = ReferenceFramework) -> str | None:
    result = find_failure(instance, framework)
    return result and result.name


class _QuantizesInPlace(ReferenceQuantizers):
    def quantize(self, name: str, values: Array) -> Quantized:
        result = super().quantize(name, values)
        values[...] = result.values
        return result


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_coded_calls_of_the_reference_pass(call: Any) -> None:
    assert find_clause(CodedCalls((call,))) is None


@pytest.mark.parametrize(
    ("call", "framework", "name"),
    [
        (FAKE, quantization.GradientEverywhere, "quantization.straight-through"),
        (FAKE, quantization.FractionsAreCutOff, "quantization.fake-values"),
        (MATRIX, quantization.FractionsAreCutOff, "quantization.codes-as-declared"),
        (MATRIX, with_parts(quantizers_class=_QuantizesInPlace), "laws.codes"),
        (SPOILT, quantization.NanIsOverlooked, "quantization.non-finite"),
        (SQUARE, quantization.RangesAlongTheOtherAxis, "quantization.range-follows-data"),
        (CAST, formats.NaNIsDecodedAs480, "formats.decode"),
        (CASTS, formats.InfinityIsDeclaredAndNotKept, "formats.overflow-as-declared"),
        (PRODUCT, formats.PairsSaturate, "quantization.integer-products"),
        (FLOAT_PRODUCT, formats.ProductsKnowOneFormat, "formats.products"),
        (PACKED, formats.NibblesHaveNoSign, "formats.packing"),
    ],
)
def test_coded_calls_with_a_broken_rule_name_its_clause(call: Any, framework: Any, name: str) -> None:
    assert find_clause(CodedCalls((call,)), framework) == name


def test_coded_calls_of_a_cast_in_the_order_of_memory_fail_in_columns() -> None:
    assert find_clause(CodedCalls((CASTS,)), formats.CastsInTheOrderOfMemory) is None
    assert find_clause(CodedCalls((CASTS,), "columns"), formats.CastsInTheOrderOfMemory) == "formats.round-to-nearest"


class _WidensRanges(ReferenceQuantizers):
    """A range includes those of all earlier calls."""

    amax: list[float]

    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        self.amax.append(float(np.abs(values).max()))
        return -np.full_like(values, max(self.amax)), np.full_like(values, max(self.amax))


def test_coded_calls_that_depend_on_earlier_ones_fail() -> None:
    larger = QuantizerCall("int8-row", Matrix(3, 5, (9,), 0, "one", 1))
    smaller = QuantizerCall("int8-tensor", Matrix(3, 5, (0,), 0, "one", 1))
    broken = type("Widens", (_WidensRanges,), {"amax": []})
    assert find_clause(CodedCalls((smaller, larger)), with_parts(quantizers_class=broken)) == "laws.codes"


def case(technique: str, *verbs: quantized.QuantizedVerb, layers: int = 1, skip: tuple[str, ...] = ()) -> QuantizedCase:
    body: list[Layer] = [Dense(5), Activation("tanh")] * layers
    model = Model("drawn", (*body, Heads((Head("output", 3),))), (8,), (("output", "squared_error"),))
    return QuantizedCase(technique, model, skip, 0, (4, 3), verbs, 7)


@pytest.mark.parametrize(
    ("drawn", "framework", "name"),
    [
        (
            case("weight-int8", layers=6, skip=("0.weight", "2.weight")),
            quantization.SkipsOnlyTheFirst,
            "only-what-was-asked",
        ),
        (case("dynamic-int8", quantized.RunLayers(300, 1)), quantization.RowsShareARange, "linear-arithmetic"),
        (case("weight-int4", SaveAndLoad("other")), formats.OddRowOfInt4IsLostInALoad, "survives-saving"),
        (case("weight-int8"), quantization.OneScaleForAllColumns, "weights-as-declared"),
        (case("dynamic-int8", PredictBatch(1, 3), PredictBatch(1, -6)), quantization.RangeOnlyGrows, "dynamic-scale"),
        (case("static-int8"), quantization.LastBatchDecides, "calibrated-range"),
    ],
)
def test_quantized_case_with_a_broken_model_names_its_clause(drawn: QuantizedCase, framework: Any, name: str) -> None:
    assert find_clause(drawn) is None
    assert find_clause(drawn, framework) == f"quantization.{name}"


class _ClipsMost(ReferenceDelayedProduct):
    """Values are cast by a fraction of the stored scale, so that they saturate."""

    def cast(self, values: Array, operand: Operand, scale: float) -> Array:
        return super().cast(values, operand, 2.0**-8 * scale)


@pytest.mark.parametrize(
    ("history", "micro_batches", "steps", "broken", "text"),
    [
        (18, 1, LONG, formats.HistoryOfSixteen, ""),
        (3, 2, (SPOILT_STEP, SPOILT_STEP), formats.InfinityIsAScale, ""),
        (3, 1, (ZERO, DelayedStep(((2, 2),), predicts=True)), formats.EvaluationIsRemembered, ""),
        (3, 1, (TWO, ZERO), with_parts(delayed_class=_ClipsMost), "output"),
    ],
    ids=["long-history", "infinity", "prediction", "output"],
)
def test_delayed_case_with_a_broken_scale_fails(
    history: int, micro_batches: int, steps: tuple[DelayedStep, ...], broken: Any, text: str
) -> None:
    drawn = DelayedCase((3, 7, 2), history, micro_batches, 0, steps, 1)
    assert find_failure(drawn) is None
    assert find_failure(drawn, broken).text.startswith(text)


def qat_failure(framework: Any, *verbs: quantized.QatVerb, freeze: int | None = None, **fields: Any) -> Any:
    return find_failure(QatCase(QAT_MODEL, freeze, 2, (TRAIN_QAT, *verbs), 7, **fields), framework)


@pytest.mark.parametrize(
    ("framework", "verbs", "fields", "clause"),
    [
        (quantization.AverageStartsAtOne, (), {}, "ranges-follow"),
        (quantization.NeverFrozen, (LARGE,), {"freeze": 1}, "ranges-follow"),
        (formats.SkippedUpdatesFreezeRanges, (SkipQat(), LARGE), {"freeze": 2, "scaled": True}, "ranges-follow"),
        (quantization.PredictionsAreObserved, (quantized.PredictQat(3, 4),), {}, "observers-hold-still"),
        (quantization.ConvertsByAnotherScale, (Convert(2),), {}, "convert-is-faithful"),
        (quantization.ConvertedClipsElsewhere, (LARGE, Convert(33)), {}, "convert-is-faithful"),
        (quantization.RangesAreNotLoaded, (LARGE, quantized.Reload("fresh")), {}, "aware-survives-saving"),
    ],
)
def test_qat_case_with_a_fault_names_its_clause(
    framework: Any, verbs: tuple[quantized.QatVerb, ...], fields: dict[str, Any], clause: str
) -> None:
    assert qat_failure(ReferenceFramework, *verbs, **fields) is None
    assert qat_failure(framework, *verbs, **fields).name == f"quantization.{clause}"
