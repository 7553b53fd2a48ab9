"""Stored verdicts, classified again as if nobody had judged their series: what failed before is known, nothing else."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.checks.outcome import judge
from conformance.known_failures.confirm import FAILED
from conformance.known_failures.entries import Known
from conformance.known_failures.judged_series import VersionSeries
from conformance.known_failures.reading import load_known
from frameworks.registry import built_in
from results.record.model import TestVerdict
from results.record.outcomes import Outcome
from results.record.reading import Record, load
from tests.support.suite_runs import ROOT

BASELINES = sorted((ROOT / "results" / "baselines").glob("*-cpu-*.json.gz"))
PARTIAL = ROOT / "tests" / "records" / "jax-keras-cuda-partial.json.gz"


def series_of(record: Record) -> VersionSeries:
    """The series of a record, with its version."""
    return VersionSeries(record.variant.framework_version, record.series.device, record.series.mode)


def applying(record: Record, known: Known) -> Known:
    """What applies to a record's series."""
    return known.applying(record.series.framework, series_of(record), record.seed, record.variant.instruction_sets)


def classified(record: Record, known: Known) -> Iterator[tuple[TestVerdict, str, str]]:
    """Each verdict that passed or failed, with what it is now and the series that its entry is taken from."""
    entries = applying(record, known).expectations
    for verdict in record.verdicts:
        failed = verdict.outcome in FAILED
        if failed or verdict.outcome in (Outcome.PASS, Outcome.FIXED):
            matching = [entry for entry in entries if entry.covers(verdict.clause, verdict.case)]
            now, entry = judge(failed, verdict.signature, matching)
            yield verdict, now, entry.inferred_from if entry else ""


def elsewhere(record: Record, device: str, mode: str | None = None) -> Record:
    """The record as it would be of another device, or of another mode."""
    series = replace(record.series, device=device, device_kind="Other GPU", mode=mode or record.series.mode)
    return replace(record, series=series)


def to_act_on(record: Record, known: Known) -> list[str]:
    """Verdicts that would need action."""
    return [f"{v.case}: {now}" for v, now, _ in classified(record, known) if now in ("fail", "fixed")]


FIRST = {f"-{device}-{mode}.json.gz" for judged in load_known().judged.values() for device, mode in list(judged)[:1]}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.name, marks=[] if path.name.endswith(tuple(FIRST)) else pytest.mark.slow)
        for path in BASELINES
    ],
)
def test_classified_on_another_device_needs_no_action(path: Path) -> None:
    record = load(path)
    known = load_known([record.series.framework])
    assert not to_act_on(record, known), "in its own series"
    judged = known.judged.get(record.series.framework, {})
    for device in ("cuda", "xpu"):
        other = elsewhere(record, device)
        if (device, record.series.mode) not in judged:
            assert not to_act_on(other, known), device
            origins = Counter(origin for _, now, origin in classified(other, known) if now == "known")
            assert all(str(series_of(record)).partition("+")[0] in origin for origin in origins)
            assert origins.total() == sum(v.outcome is Outcome.KNOWN for v in record.verdicts)


@pytest.mark.parametrize("name", sorted(built_in().keys() - {"reference"}))
def test_classified_in_an_unjudged_mode_needs_no_action(name: str) -> None:
    known = load_known([name])
    device, mode = next(iter(known.judged[name]))
    (path,) = (
        path for path in BASELINES if path.name.startswith(f"{name}-") and path.name.endswith(f"-{mode}.json.gz")
    )
    other = elsewhere(load(path), device, "unheard-of")
    assert not to_act_on(other, known)
    assert sum(now == "known" for _, now, _ in classified(other, known)) > 10


def test_classified_of_keras_on_jax_on_a_gpu_is_known_from_a_cpu() -> None:
    """24 failures of a run on a GPU, of which `device = "cpu"` was said."""
    record, known = load(PARTIAL), load_known(["jax"])
    assert (record.series.device, record.series.mode) not in known.judged["jax"]
    before = Counter(verdict.outcome.value for verdict in record.verdicts)
    assert (before["fail"], before["error"], before["known"]) == (22, 2, 6)
    result = list(classified(record, known))
    assert Counter(now for _, now, _ in result) == {"known": 30, "pass": before["pass"]}
    assert {origin for _, now, origin in result if now == "known"} == {"0.10.2 cpu keras"}


def test_classified_of_another_signature_or_a_new_failure_needs_action() -> None:
    record, known = load(PARTIAL), load_known(["jax"])
    failed = next(v for v in record.verdicts if v.outcome is Outcome.FAIL)
    passed = next(v for v in record.verdicts if v.outcome is Outcome.PASS)
    otherwise = replace(failed, signature="otherwise"), replace(passed, outcome=Outcome.FAIL, signature="new")
    assert len(to_act_on(replace(record, verdicts=otherwise), known)) == 2


def test_committed_entries_are_of_judged_series() -> None:
    known = load_known()
    for entry in (*known.expectations, *known.exclusions):
        name = entry.finding.framework
        series = [VersionSeries(each, *where) for where, versions in known.judged[name].items() for each in versions]
        bearings = (known.place(name, each).bearing(entry.versions, entry.device, entry.mode) for each in series)
        assert any(bearing is not None for bearing in bearings), entry
