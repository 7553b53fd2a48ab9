"""Records of a device or mode that nobody had judged make the entries valid there that they confirm, and no others."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from conformance.known_failures.confirm import ConfirmError, confirm
from conformance.known_failures.reading import read_known
from frameworks.registry import built_in
from results.record.model import TestVerdict
from results.record.outcomes import Outcome
from results.record.reading import Record, load
from tests.known_failures.test_confirm import of_present_tests
from tests.known_failures.test_unjudged_series import elsewhere, to_act_on
from tests.support.suite_runs import ROOT
from tests.support.twin_records import FIRST, confirmed, failing, passing, record, write_expectations

TEXT = f"""# What Twin is known not to do.

[judged]
# by device and mode
cpu.eager = ["1.0", "2.0"]
# the end

{FIRST}
[[expectation]]
finding = "first"
clause = "scaling.stays-finite"
versions = ">=1.0,<=2.0"
device = "cpu"
cases = ["test_a[x]", "test_b"]
signature = "differs"
"""
A, B = failing("test_a[x]"), failing("test_b")


def of(device: str, mode: str, version: str, *verdicts: TestVerdict) -> Record:
    """A whole run of the twin on a device in a mode."""
    return elsewhere(record(version, *verdicts), device, mode)


def after(folder: Path, text: str, *records: Record) -> str:
    """The file as the records make it."""
    path = write_expectations(folder, text)
    return confirmed(path, *records).text


def entries(text: str) -> list[Mapping[str, Any]]:
    """What the entries say of where they apply."""
    keys = "versions", "device", "mode", "cases"
    return [{key: each[key] for key in keys if key in each} for each in tomllib.loads(text)["expectation"]]


BOTH = ["test_a[x]", "test_b"]
FORMER = {"versions": ">=1.0,<=2.0", "device": "cpu", "cases": BOTH}


@pytest.mark.parametrize(
    ("verdicts", "found"),
    [
        ((A, B), [{**FORMER, "device": "cpu, cuda"}]),
        ((A, passing("test_b", outcome=Outcome.UNSUPPORTED)), [{**FORMER, "device": "cpu, cuda"}]),
        ((passing("test_a[x]"), passing("test_b")), [FORMER]),
        ((failing("test_a[x]", "otherwise"), passing("test_b")), [FORMER]),
        (
            (A, passing("test_b")),
            [FORMER, {"versions": "==2.0", "device": "cuda", "mode": "eager", "cases": ["test_a[x]"]}],
        ),
        ((A,), [FORMER, {"versions": "==2.0", "device": "cuda", "mode": "eager", "cases": ["test_a[x]"]}]),
    ],
)
def test_an_entry_of_a_cpu_becomes_one_of_both_devices_where_it_fails_on_both(
    tmp_path: Path, verdicts: tuple[TestVerdict, ...], found: list[Mapping[str, Any]]
) -> None:
    run = of("cuda", "eager", "2.0", *verdicts)
    text = after(tmp_path, TEXT, run)
    assert entries(text) == found
    assert '# by device and mode\ncpu.eager = ["1.0", "2.0"]\ncuda.eager = ["2.0"]\n# the end\n' in text
    assert after(tmp_path, text, run) == text, "the second time nothing changes"


def test_confirm_of_another_mode_or_version_widens_the_entry(tmp_path: Path) -> None:
    text = TEXT.replace('device = "cpu"\n', 'mode = "eager"\n')
    result = entries(after(tmp_path, text, of("cpu", "graph", "2.0", A, B)))
    assert result == [{"versions": ">=1.0,<=2.0", "mode": "eager, graph", "cases": BOTH}]
    assert entries(after(tmp_path, TEXT, of("cuda", "eager", "3.0", A, B))) == [
        {**FORMER, "versions": ">=1.0,<=3.0", "device": "cpu, cuda"}
    ]


def test_what_would_claim_a_failure_of_another_judged_series_is_an_entry_of_its_own(tmp_path: Path) -> None:
    judged = TEXT.replace("# the end", 'cpu.graph = ["3.0"]\n# the end')
    own = {"versions": "==3.0", "device": "cuda", "mode": "eager", "cases": BOTH}
    assert entries(after(tmp_path, judged, of("cuda", "eager", "3.0", A, B))) == [FORMER, own]
    here = {**own, "device": "cpu"}
    assert entries(after(tmp_path, judged, of("cpu", "eager", "3.0", A, B))) == [FORMER, here]


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (of("cuda", "eager", "2.0", passing("test_a[x]"), passing("test_b")), [FORMER]),
        (
            of("cuda", "eager", "2.0", A, passing("test_b")),
            [FORMER, {"versions": "==2.0", "device": "cuda", "mode": "eager", "cases": ["test_a[x]"]}],
        ),
        (
            of("cpu", "graph", "2.0", passing("test_a[x]"), passing("test_b")),
            [{"versions": ">=1.0,<=2.0", "mode": "eager", "cases": BOTH}],
        ),
        (of("cuda", "eager", "2.0", A, B), [{"versions": ">=1.0,<=2.0", "cases": BOTH}]),
    ],
)
def test_an_entry_of_every_device_becomes_one_of_those_where_it_fails(
    tmp_path: Path, run: Record, found: list[Mapping[str, Any]]
) -> None:
    assert entries(after(tmp_path, TEXT.replace('device = "cpu"\n', ""), run)) == found


def test_a_repair_in_one_of_several_judged_modes_is_for_a_hand(tmp_path: Path) -> None:
    judged = TEXT.replace("# the end", 'cpu.graph = ["2.0"]\n# the end')
    message = r"expectation 1 \(.*\) no longer fails for cpu eager, but still does for cpu graph; edit it by hand"
    with pytest.raises(ConfirmError, match=message):
        after(tmp_path, judged, record("2.0", passing("test_a[x]"), passing("test_b")))
    unsure = record("2.0", *(passing(case, outcome=Outcome.ABSTAIN) for case in BOTH))
    assert after(tmp_path, judged, unsure) == judged


def test_modes_of_other_names_are_quoted_and_another_layout_is_refused(tmp_path: Path) -> None:
    text = after(tmp_path, TEXT, of("cuda:0", "a b", "2.0", A, B))
    assert '"cuda:0"."a b" = ["2.0"]' in text
    with pytest.raises(ConfirmError, match=re.escape("judged must be a table [judged]")):
        after(tmp_path, TEXT.replace("[judged]\n", "[judged.cpu]\n").replace("cpu.eager", "eager"), record("3.0", A, B))


@pytest.mark.parametrize("name", sorted(built_in().keys() - {"reference"}))
def test_after_an_update_the_new_series_is_judged_by_its_own_record(name: str, tmp_path: Path) -> None:
    """With the CPU's verdicts on another device every entry that applies is one of both devices."""
    path = sorted((ROOT / "results" / "baselines").glob(f"{name}-*-cpu-*.json.gz"))[-1]
    baseline = load(path)
    run = elsewhere(of_present_tests(baseline, baseline.variant.framework_version), "xpu")
    folder = ROOT / "frameworks" / name
    text, known = (folder / "expectations.toml").read_text("utf-8"), read_known(folder, name)
    outcome = confirm([run], known, text)
    assert not outcome.unnamed
    copy = tmp_path / name
    copy.mkdir()
    for other in folder.iterdir():
        if other.name != "expectations.toml":
            (copy / other.name).symlink_to(other)
    (copy / "expectations.toml").write_text(outcome.text, encoding="utf-8")
    again = read_known(copy, name)
    assert ("xpu", run.series.mode) in again.judged[name]
    assert not to_act_on(run, again)
    assert not to_act_on(baseline, again)
    assert len(again.expectations) == len(known.expectations)
