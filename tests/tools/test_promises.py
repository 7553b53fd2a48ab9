"""Promises beside what records tell: a cell comes from the record of its device, or says that there is none."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest

from results.record.reading import CheckResult, Measurement, Outcome, Record, TestVerdict
from tools.docs.blocks import baselines, trained
from tools.docs.promises import PROMISES, Quantity, checked, table, timed

CASES = "a_test_of_whatever_name"
CLAUSE = "cost.mixed-speed"
PLACE = CLAUSE, "seconds a step, O1-float16", f"{CASES}[O1-float16]"
TIMED = Quantity("a step", "0.5", CLAUSE, "O1-", checked(CLAUSE, "O1-"), timed(r"seconds a step, O1-\w+", "O1-"))


@pytest.fixture(scope="module")
def torch() -> Record:
    return next(record for record in baselines() if record.series.framework == "torch")


def of(record: Record, device: str, kind: str, slower: float, outcome: Outcome = Outcome.PASS) -> Record:
    """A record of another device with one time, so many times its control's, and one count of half as much."""
    times = Measurement(*PLACE, "s", (slower,) * 60, (1.0,) * 60)
    checks = (CheckResult("share", slower / 2, None, None, True),) if slower else ()
    verdict = TestVerdict(f"cost.mixed-speed/{CASES}[O1-float16]", "cost.mixed-speed", outcome, checks=checks)
    series = replace(record.series, device=device, device_kind=kind)
    return replace(record, series=series, measurements=(times,) if slower else (), verdicts=(verdict,))


def rows(*records: Record) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table([TIMED], records).splitlines()]


def test_without_a_record_of_a_gpu_its_column_says_so(torch: Record) -> None:
    heading, _, row = rows(of(torch, "cpu", "cpu", 1.5))
    assert heading == ["", "framework", "document", "exact count", "CPU measured", "GPU measured"]
    assert row == ["a step", "torch eager", "0.5", "0.75 (float16)", "1.50 to 1.50 (float16)", "no record"]


def test_a_record_of_another_device_brings_its_own_column(torch: Record) -> None:
    heading, _, row = rows(of(torch, "cpu", "cpu", 1.5), of(torch, "cuda", "NVIDIA X", 0.5))
    assert heading[4:] == ["CPU measured", "NVIDIA X measured"]
    assert row[3:] == [
        "0.75 (float16) (cpu); 0.25 (float16) (NVIDIA X)",
        "1.50 to 1.50 (float16)",
        "0.50 to 0.50 (float16)",
    ]
    assert rows(of(torch, "cuda", "NVIDIA X", 0.5))[2][4:] == ["no record", "0.50 to 0.50 (float16)"]


def test_a_framework_that_has_no_record_of_a_device_says_so_beside_one_that_has(torch: Record) -> None:
    other = replace(torch, series=replace(torch.series, framework="zeta"))
    result = rows(of(torch, "cpu", "cpu", 1.5), of(torch, "cuda", "NVIDIA X", 0.5), of(other, "cpu", "cpu", 2.0))
    assert result[3][0] == ""
    assert result[3][1] == "zeta eager"
    assert result[3][4:] == ["2.00 to 2.00 (float16)", "no record"]


@pytest.mark.parametrize(
    ("outcome", "text"),
    [(Outcome.UNSUPPORTED, "unsupported"), (Outcome.NOT_OFFERED, "not offered"), (Outcome.ERROR, "–")],
)
def test_a_record_without_the_number_says_whether_it_can_have_one(torch: Record, outcome: Outcome, text: str) -> None:
    assert rows(of(torch, "cpu", "cpu", 0.0, outcome))[2][3:5] == [text, text]


def test_too_few_pairs_are_told_as_such(torch: Record) -> None:
    record = of(torch, "cpu", "cpu", 1.5)
    short = Measurement(*PLACE, "s", tuple(1.5 + index / 100 for index in range(5)), (1.0,) * 5)
    assert rows(replace(record, measurements=(short,)))[2][4] == "1.5 of 5 pairs (float16)"


def test_modes_that_tell_the_same_share_a_row(torch: Record) -> None:
    other = replace(torch, series=replace(torch.series, mode="compile"))
    assert [row[1] for row in rows(of(torch, "cpu", "cpu", 1.5), of(other, "cpu", "cpu", 1.5))[2:]] == [
        "torch compile, eager"
    ]


@pytest.mark.parametrize("promise", PROMISES)
def test_every_quantity_is_told_by_a_committed_record(promise: str) -> None:
    """Each has a number somewhere, or is unsupported on every committed device, as what needs a GPU is."""
    records = [*baselines(), *chain.from_iterable(trained().values())]
    for quantity in PROMISES[promise]:
        lines = table([quantity], records).splitlines()[2:]
        assert lines, quantity.what
        cells = {cell.strip() for line in lines for cell in line.split("|")[4:-1]}
        assert cells - {"–", "no record"}, quantity.what
        measured = (quantity.bytes, quantity.times)
        if quantity.clause.startswith("scenario."):
            assert all(figure is None or any(figure(record) for record in records) for figure in measured)
