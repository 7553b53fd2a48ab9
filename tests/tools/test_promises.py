"""Promises next to what the committed records say."""

from dataclasses import replace

import pytest

from results.record.reading import Measurement, Record
from tools.docs.blocks import baselines, trained
from tools.docs.promises import PROMISES, Promise, table

CASE = "cost.mixed-speed", "seconds a step, O1-float16", "test_x[O1-float16]"


@pytest.mark.parametrize("name", PROMISES)
def test_table_has_every_quantity_of_a_promise(name: str) -> None:
    promise = PROMISES[name]
    for pattern, document in promise.costs.items():
        assert f"| {document} " in table(Promise({pattern: document}), baselines(), {})
    for scenario in promise.scenarios:
        assert f"| {scenario}, " in table(replace(promise, scenarios=(scenario,)), baselines(), trained())


def rows(*records: Record) -> list[list[str]]:
    text = table(Promise({"cost.mixed-speed .*": "0.5"}), records, {})
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]


def test_table_shows_intervals_counts_and_short_runs_of_equal_records_once() -> None:
    torch = next(record for record in baselines() if record.series.framework == "torch")
    times = replace(torch, measurements=(Measurement(*CASE, "s", (1.5,) * 60, (1.0,) * 60),))
    short = replace(torch, measurements=(Measurement(*CASE, "s", (1.5, 1.5, 1.6), (1.0, 1.0, 1.0)),))
    count = replace(torch, measurements=(Measurement(*CASE, "1", (0.25,)),))
    quantity = "seconds a step, O1-float16 (O1-float16)"
    ((*first, names, text),) = rows(times, replace(times, series=replace(torch.series, mode="compile")))
    assert (first, text) == ([quantity, "0.5"], "1.50 to 1.50")
    assert [mode in names for mode in ("eager", "compile")] == [True, True]
    assert [row[3] for row in (*rows(short), *rows(count))] == ["1.5 of 3 pairs", "0.25"]
