"""Lines of versions: which records are in one, and what a sweep's list adds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from results.history.changes import history
from results.history.folders import PlannedCell, gather
from results.history.lines import lines
from results.history.statements import statement
from results.record.reading import RecordError, write
from tests.support.versions import CLAUSE, gathered, judged, record

PASS, FAIL = {"test_a": "pass"}, {"test_a": "fail"}


def versions_by_line(*members: Any, planned: Any = ()) -> dict[str, list[str]]:
    """The versions of each line."""
    result = lines(gathered(*members, planned=planned))
    return {line.name: [column.version for column in line.columns] for line in result}


def test_two_platforms_are_never_one_line() -> None:
    here, gpu = judged("2.0", PASS), replace(judged("2.1", FAIL), platform="x86_64 linux NVIDIA H100")
    arm = replace(judged("2.1", FAIL), platform="aarch64 linux cpu")
    result = lines(gathered(here, gpu, arm))
    assert [len(line.columns) for line in result] == [1, 1, 1]
    assert all(history(line).points == () for line in result)


def test_modes_and_seeds_are_lines_of_their_own() -> None:
    one = judged("2.0", PASS)
    assert len(lines(gathered(one, replace(one, mode="compile"), replace(one, seed=1)))) == 3


def test_builds_of_a_version_share_its_column() -> None:
    assert versions_by_line(judged("2.6.0+cpu", PASS), judged("2.6.0+cu124", PASS), judged("2.7.0+cu126", PASS)) == {
        "torch, eager, x86_64 linux cpu": ["2.6.0", "2.7.0"]
    }


def test_a_companion_is_told_apart_from_the_framework() -> None:
    versions = ("2.19.1+keras.3.8.0", "2.19.1+keras.3.15.1", "2.21.0+keras.3.15.1")
    members = [judged(version, PASS) for version in versions]
    assert versions_by_line(*members) == {
        "torch keras (torch 2.19.1), eager, x86_64 linux cpu": ["3.8.0", "3.15.1"],
        "torch, eager, x86_64 linux cpu": ["2.19.1", "2.21.0"],
    }
    (line,) = [line for line in lines(gathered(*members)) if line.package == "torch"]
    assert [column.companions["keras"] for column in line.columns] == ["3.15.1", "3.15.1"]


def test_a_library_alone_has_no_line_of_the_framework() -> None:
    members = [judged(f"2.13.0+cpu.accelerate.{version}", PASS) for version in ("1.12.0", "1.15.0")]
    assert versions_by_line(*members) == {
        "torch accelerate (torch 2.13.0), eager, x86_64 linux cpu": ["1.12.0", "1.15.0"]
    }


def cell(version: str, outcome: str = "judged", package: str = "torch", **more: Any) -> PlannedCell:
    """A cell of a sweep of torch."""
    return PlannedCell("torch", version, package, "eager", outcome, **more)


def test_a_plan_adds_versions_that_nobody_could_judge() -> None:
    planned = [(cell("1.9", "timeout"), None), (cell("2.1", "yanked", reason="broken"), None), (cell("2.0.0"), None)]
    (line,) = lines(gathered(judged("2.0", PASS), planned=planned))
    assert [(column.version, column.gap) for column in line.columns] == [
        ("1.9", "timeout"),
        ("2.0", ""),
        ("2.1", "yanked: broken"),
    ]


def test_a_plan_of_a_companion_takes_in_the_pinned_record() -> None:
    planned = [(cell("3.8.0", package="keras", framework_version="2.19.1"), judged("2.19.1+keras.3.8.0", FAIL))]
    names = versions_by_line(judged("2.19.1+keras.3.15.1", PASS), planned=planned)
    assert names["torch keras (torch 2.19.1), eager, x86_64 linux cpu"] == ["3.8.0", "3.15.1"]


def keras(version: str, framework: str, record: bool = True) -> Any:
    """A cell of keras and its record."""
    one = cell(version, "judged" if record else "timeout", "keras", framework_version=framework)
    return one, judged(f"{framework}+keras.{version}", PASS) if record else None


def test_a_companion_under_two_frameworks_has_two_lines() -> None:
    cells = [keras(version, framework) for framework in ("2.19.1", "2.21.0") for version in ("3.10.0", "3.11.0")]
    assert versions_by_line(planned=[*cells, keras("3.12.0", "2.21.0", record=False)]) == {
        "torch keras (torch 2.19.1), eager, x86_64 linux cpu": ["3.10.0", "3.11.0"],
        "torch keras (torch 2.21.0), eager, x86_64 linux cpu": ["3.10.0", "3.11.0", "3.12.0"],
    }


def test_a_companion_with_the_framework_of_its_time_has_one_line() -> None:
    cells = [keras("3.10.0", "2.19.1"), keras("3.11.0", "2.21.0"), keras("3.12.0", "2.21.0", record=False)]
    (line,) = lines(gathered(planned=cells))
    assert (line.fixed, [column.version for column in line.columns]) == ((), ["3.10.0", "3.11.0", "3.12.0"])
    assert [column.companions.get("torch", "") for column in line.columns] == ["2.19.1", "2.21.0", ""]


def test_ways_and_the_mode_of_the_adapter() -> None:
    plain = PlannedCell("torch", "2.1", "", "", "timeout"), None
    by = PlannedCell("torch", "2.2", "", "", "timeout", ways=("x",)), None
    one = judged("2.0", PASS)
    result = versions_by_line(one, replace(one, mode="eager by x"), planned=[plain, by])
    assert result == {
        "torch, eager, x86_64 linux cpu": ["2.0", "2.1"],
        "torch, eager by x, x86_64 linux cpu": ["2.0", "2.2"],
    }


def sweep(folder: Path, document: Any) -> Path:
    """A sweep's folder with two records."""
    (folder / "records").mkdir()
    write(folder / "records" / "a.json.gz", record("2.0", PASS))
    write(folder / "records" / "b.json.gz", record("2.2", FAIL))
    (folder / "outcomes.json").write_text(document if isinstance(document, str) else json.dumps(document))
    return folder


CELL = {
    "framework": "torch",
    "framework_version": "2.0",
    "version": "2.0",
    "released": "2025-01-29",
    "package": "torch",
    "companions": {},
    "mode": "eager",
    "ways": [],
    "device": "cpu",
    "python": "3.11",
    "outcome": "judged",
    "reason": "",
    "record": "a.json.gz",
}


def test_the_folder_of_a_sweep(tmp_path: Path) -> None:
    cells = [
        CELL,
        CELL | {"version": "2.1", "outcome": "no wheel", "record": "", "released": "2025-04-23"},
        CELL | {"version": "2.2", "record": "b.json.gz", "released": "2025-08-06"},
    ]
    (line,) = lines(gather([sweep(tmp_path, {"version": 1, "cells": cells})]))
    one = history(line)
    assert statement(line, one.clauses[CLAUSE]) == "≤2.0 pass · 2.1 not judged (no wheel) · 2.2 fail (from 2025-08-06)"
    assert len(one.points) == 1


def test_a_record_that_no_cell_names_counts_as_well(tmp_path: Path) -> None:
    assert len(gather([sweep(tmp_path, {"version": 1, "cells": [CELL]})]).plain) == 1


@pytest.mark.parametrize(
    "document",
    [
        "{",
        {"version": 2, "cells": []},
        {"version": 1, "cells": [CELL | {"released": "yesterday"}]},
        {"version": 1, "cells": [CELL | {"outcome": 3}]},
        {"version": 1, "cells": [CELL | {"framework": "jax"}]},
        {"version": 1, "cells": [{"framework": "torch"}]},
        '{"version": 1, "version": 1, "cells": []}',
    ],
)
def test_a_damaged_list_is_refused_in_one_line(tmp_path: Path, document: Any) -> None:
    with pytest.raises(RecordError, match=r"outcomes\.json.*run the sweep again") as caught:
        gather([sweep(tmp_path, document)])
    assert "\n" not in str(caught.value)


def test_a_name_from_the_list_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    outside = tmp_path / "outside.json"
    write(outside, record("9.9", PASS))
    cells = [CELL, CELL | {"version": "9.9", "record": "../../outside.json"}]
    result = gather([sweep(tmp_path / "s", {"version": 1, "cells": cells})])
    assert [one.version if one else None for _, one in result.planned] == ["2.0", None]
