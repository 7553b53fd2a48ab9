"""Lines of versions, and runs and change points of clauses in them: what is a change of the framework."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from results.history.changes import LineHistory, alongside, between, change, history, interval, statement
from results.history.versions import PlannedCell, gather, lines
from results.record.reading import RecordError, write
from tests.support.versions import CLAUSE, gathered, history_of, judged, only_line, record


def said(one: LineHistory, clause: str = CLAUSE) -> str:
    """The statement about a clause."""
    return statement(one.line, one.clauses[clause])


def series(*words: str) -> LineHistory:
    """Versions 2.0, 2.1, ... of one test with these outcomes."""
    return history_of(*((f"2.{place}", {"test_a": word}) for place, word in enumerate(words)))


@pytest.mark.parametrize(
    ("words", "want", "points"),
    [
        (("fail", "pass", "pass", "fail"), "≤2.0 fail · 2.1–2.2 pass · 2.3 fail", 2),
        (("pass", "pass"), "≤2.0–2.1 pass", 0),
        (("pass",), "≤2.0 pass", 0),
        (("unsupported", "pass", "unsupported", "pass"), "≤2.0 unsupported · 2.1 pass · 2.2 unsupported · 2.3 pass", 3),
        (("known", "fail", "misdeclared"), "≤2.0–2.2 fail", 0),
        (("pass", "fixed"), "≤2.0–2.1 pass", 0),
        (("pass", "abstain", "pass"), "≤2.0 pass · 2.1 abstain · 2.2 pass", 0),
        (("pass", "unstable", "pass"), "≤2.0 pass · 2.1 unstable · 2.2 pass", 0),
        (("not offered", "pass"), "2.0 not offered · ≤2.1 pass", 0),
        (("fail", "unstable", "pass"), "≤2.0 fail · 2.1 unstable · 2.2 pass", 1),
        (("pass", "not offered", "unsupported"), "≤2.0 pass · 2.1 not offered · 2.2 unsupported", 1),
    ],
)
def test_runs_of_equal_words_and_the_changes_between_them(words: tuple[str, ...], want: str, points: int) -> None:
    one = series(*words)
    assert said(one) == want
    assert len(one.points) == points


def test_a_change_lies_between_the_nearest_judged_versions() -> None:
    one = series("fail", "unstable", "pass")
    (point,) = one.points
    assert interval(one.line, point) == "2.0 → 2.2"
    assert [column.version for column in between(one.line, point)] == ["2.1"]
    assert change(point) == "fail → pass: 1 newly passing of 1 test"
    assert not point.worse


def test_another_signature_of_the_same_word_is_marked() -> None:
    one = series("fail: raises", "known: raises", "fail: differs")
    assert said(one) == "≤2.0–2.1 fail · 2.2 fail (otherwise)"
    (point,) = one.points
    assert (point.kind, point.otherwise) == ("failure", ((f"{CLAUSE}/test_a", "raises", "differs"),))


@pytest.mark.parametrize(
    ("before", "after", "want"),
    [
        (("fail", "pass"), ("fail", "fail"), "fails in more tests: 1 newly failing"),
        (("fail", "fail"), ("fail", "pass"), "fails in fewer tests: 1 newly"),
        (("fail", "pass"), ("pass", "fail"), "fails otherwise: 1 newly failing, 1"),
        (("pass", "unsupported"), ("pass", "pass"), "passes with other support"),
        (("pass", "pass"), ("pass", "unsupported"), "passes with other support"),
    ],
)
def test_tests_that_move_below_an_equal_word(before: Sequence[str], after: Sequence[str], want: str) -> None:
    sides = (dict(zip(("test_a", "test_b"), words, strict=True)) for words in (before, after))
    one = history_of(*zip(("2.0", "2.1"), sides, strict=True))
    (point,) = one.points
    assert change(point).startswith(want)
    assert point.worse is ("newly failing" in change(point) or "newly unsupported" in change(point))


def test_a_test_that_only_some_records_have_changes_nothing() -> None:
    one = history_of(
        ("2.0", {"test_a": "pass"}), ("2.1", {"test_a": "pass", "test_new": "fail"}), ("2.2", {"test_a": "pass"})
    )
    assert one.points == ()
    assert said(one) == "≤2.0 pass · 2.1 fail (by other tests) · 2.2 pass (by other tests)"


def test_a_version_without_a_test_does_not_hide_its_change() -> None:
    both = {"test_a": "pass", "test_b": "pass"}
    one = history_of(("2.0", both), ("2.1", {"test_a": "pass"}), ("2.2", {"test_a": "pass", "test_b": "fail"}))
    (point,) = one.points
    assert (interval(one.line, point), point.fails) == ("2.0 → 2.2", (f"{CLAUSE}/test_b",))


def test_a_change_is_not_reported_again_over_a_wider_interval() -> None:
    one = history_of(
        ("2.0", {"test_a": "pass", "test_b": "pass"}),
        ("2.1", {"test_a": "fail"}),
        ("2.2", {"test_a": "fail", "test_b": "pass"}),
    )
    assert [interval(one.line, point) for point in one.points] == ["2.0 → 2.1"]


@pytest.mark.parametrize("changes", [{"revision": 2}, {"revision": 0}])
def test_another_revision_is_no_change(changes: dict[str, Any]) -> None:
    one = history(only_line(judged("2.0", {"test_a": "pass"}), judged("2.1", {"test_a": "fail"}, **changes)))
    assert one.points == ()
    assert said(one) == "≤2.0 pass · 2.1 fail (by other tests)"


def test_versions_are_in_the_order_of_pep_440() -> None:
    one = history_of(
        *((version, {"test_a": "pass"}) for version in ("2.10.0", "2.9.1", "2.10.0rc2", "2.10.0rc10", "2.10.0.post1"))
    )
    order = [column.version for column in one.line.columns]
    assert order == ["2.9.1", "2.10.0rc2", "2.10.0rc10", "2.10.0", "2.10.0.post1"]
    assert said(one) == "≤2.9.1–2.10.0.post1 pass"


def test_the_newest_version_judged_twice_is_one_column() -> None:
    twice = ("2.1", {"test_a": "pass", "test_b": "pass"}), ("2.1", {"test_a": "fail", "test_b": "pass"})
    one = history_of(("2.0", {"test_a": "pass", "test_b": "pass"}), *twice)
    assert [len(column.records) for column in one.line.columns] == [1, 2]
    assert (said(one), one.points) == ("≤2.0–2.1 pass", ())
    alone = history_of(("2.0", {"test_a": "pass"}), ("2.1", {"test_a": "pass"}), ("2.1", {"test_a": "fail"}))
    assert said(alone) == "≤2.0 pass · 2.1 unstable"


def test_a_gap_between_equal_words_is_not_claimed() -> None:
    cells = [
        PlannedCell("torch", "2.1", "torch", "eager", "no wheel", released="2025-01-02", reason="none for cp311"),
        PlannedCell("torch", "2.2", "torch", "eager", "judged", released="2025-03-04", record="x.json"),
    ]
    newest = judged("2.2", {"test_a": "fail"})
    one = history(only_line(judged("2.0", {"test_a": "fail"}), planned=[(cells[0], None), (cells[1], newest)]))
    assert said(one) == "≤2.0 fail · 2.1 not judged (no wheel: none for cp311) · 2.2 fail (from 2025-03-04)"
    assert one.points == ()


def test_a_machine_that_lacks_an_instruction_set_explains_its_refusals() -> None:
    old, new = judged("2.0", {"test_a": "pass"}), judged("2.1", {"test_a": "unsupported"})
    test, state = f"{CLAUSE}/test_a", new.cases[CLAUSE][f"{CLAUSE}/test_a"]
    needing = {CLAUSE: {test: replace(state, reason=frozenset({"needs", "avx512f"}))}}
    lacking = replace(new, instruction_sets=frozenset({"avx2"}), cases=needing)
    full = replace(old, instruction_sets=frozenset({"avx2", "avx512f"}))
    assert history(only_line(full, lacking)).points == ()
    assert len(history(only_line(replace(full, instruction_sets=frozenset({"avx2"})), lacking)).points) == 1


def test_companions_that_changed_along_are_named() -> None:
    one = history(
        only_line(
            judged("0.6.2+flax.0.10.7.optax.0.2.5", {"test_a": "fail"}),
            judged("0.9.2+flax.0.10.7.optax.0.2.8", {"test_a": "pass"}),
        )
    )
    assert alongside(one.line, one.points[0]) == ("optax 0.2.5 → 0.2.8",)


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
