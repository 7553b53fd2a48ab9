"""`explore`: the cases that it draws, and the failures that it reports as tests to paste."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from conformance.checks.api import clause
from conformance.checks.evidence import Abstention, Verdict, Violation
from conformance.checks.subject import Profile, Subject
from conformance.search.properties import explore, generative_settings
from frameworks.contract import Capability, Unsupported
from frameworks.reference import ReferenceFramework
from frameworks.registry import adapter_file
from tests.support.suite_runs import hang_limit

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
