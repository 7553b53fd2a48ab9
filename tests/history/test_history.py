"""Histories: lines of versions, change points of clauses, their explanations, and the command."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from conformance.cli import main
from results.history.changes import (
    Explanation,
    LineHistory,
    alongside,
    change,
    compact,
    find_explanations,
    history,
    interval,
    is_history,
    load,
    markdown,
    statement,
)
from results.history.versions import FolderContents, JudgedLine, JudgedVersion, PlannedCell, condense, gather, lines
from results.record.reading import ClauseText, Outcome, Record, RecordError, Series, Suite, TestVerdict, Variant, write
from tests.support.recorded import DATE, HOSTILE, make_infected_record
from tests.support.suite_runs import run_refused

Planned = Sequence[tuple[PlannedCell, JudgedVersion | None]]
CLAUSE = "scaling.skip"
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
ENTRY = Explanation("torch", "torch", ("scaling.*",), ("2.0", "2.1"), "It was fixed", "https://example.org/1")
RELEASES = ("2.10.0", "2.9.1", "2.10.0rc2", "2.10.0rc10", "2.10.0.post1")
PASS, FAIL = {"test_a": "pass"}, {"test_a": "fail"}
BOTH, OLD_A = {"test_a": "pass", "test_b": "pass"}, ("2.0", PASS)


def record(version: str, tests: Mapping[str, str], revision: int = 1, **changes: Any) -> Record:
    """A record of a version; `tests` are outcomes, or "fail: SIGNATURE", by test of the clause or CLAUSE/TEST."""
    named = {(name if "/" in name else f"{CLAUSE}/{name}"): outcome for name, outcome in tests.items()}
    verdicts = []
    for name, text in named.items():
        outcome, _, signature = text.partition(": ")
        verdicts.append(TestVerdict(name, name.partition("/")[0], Outcome(outcome), signature))
    clauses = {v.clause: ClauseText("MUST", "…", "", (), v.clause.partition(".")[0], revision) for v in verdicts}
    variant = Variant(version, {"libc": "glibc 2.36", "machine": "x86_64", "python": "3.11.7"})
    series = Series("torch", "cpu", "cpu", "eager")
    suite = Suite("1", areas={"judging": "0"})
    result = Record(suite, series, variant, DATE, 0, "", clauses, DATE, 1.0, "complete", tuple(verdicts))
    return replace(result, **changes).sort_parts()


def make_judged_version(version: str, tests: Mapping[str, str], revision: int = 1, **changes: Any) -> JudgedVersion:
    return condense(record(version, tests, revision, **changes))


def planned_cell(version: str, outcome: str = "judged", package: str = "torch", **fields: Any) -> PlannedCell:
    return PlannedCell("torch", version, package, "eager", outcome, **fields)


def lines_of(*members: JudgedVersion, planned: Planned = ()) -> tuple[JudgedLine, ...]:
    return lines(FolderContents(members, tuple(planned)))


def only_line(*members: JudgedVersion, planned: Planned = ()) -> JudgedLine:
    (line,) = lines_of(*members, planned=planned)
    return line


def history_of(*versions: tuple[str, Mapping[str, str]]) -> LineHistory:
    return history(only_line(*(make_judged_version(version, tests) for version, tests in versions)))


def statement_of(line_history: LineHistory, clause: str = CLAUSE) -> str:
    return statement(line_history.line, line_history.clauses[clause])


@pytest.mark.parametrize(
    ("versions", "expected", "points"),
    [
        ("fail pass pass fail", "≤2.0 fail · 2.1–2.2 pass · 2.3 fail", ["2.2 → 2.3", "2.0 → 2.1"]),
        ("pass", "≤2.0 pass", []),
        (
            "unsupported pass unsupported pass",
            "≤2.0 unsupported · 2.1 pass · 2.2 unsupported · 2.3 pass",
            ["2.2 → 2.3", "2.1 → 2.2", "2.0 → 2.1"],
        ),
        ("known fail misdeclared", "≤2.0–2.2 fail", []),
        ("pass fixed", "≤2.0–2.1 pass", []),
        ("pass abstain pass", "≤2.0 pass · 2.1 abstain · 2.2 pass", []),
        ("pass unstable pass", "≤2.0 pass · 2.1 unstable · 2.2 pass", []),
        ("not-offered pass", "2.0 not offered · ≤2.1 pass", []),
        ("fail unstable pass", "≤2.0 fail · 2.1 unstable · 2.2 pass", ["2.0 → 2.2"]),
        ("pass not-offered unsupported", "≤2.0 pass · 2.1 not offered · 2.2 unsupported", ["2.0 → 2.2"]),
        ("fail:raises known:raises fail:differs", "≤2.0–2.1 fail · 2.2 fail (otherwise)", ["2.1 → 2.2"]),
        (
            [OLD_A, ("2.1", {"test_a": "pass", "test_new": "fail"}), ("2.2", PASS)],
            "≤2.0 pass · 2.1 fail (by other tests) · 2.2 pass (by other tests)",
            [],
        ),
        ([("2.0", BOTH), ("2.1", PASS), ("2.2", BOTH | {"test_b": "fail"})], None, ["2.0 → 2.2"]),
        ([("2.0", BOTH), ("2.1", FAIL), ("2.2", {"test_a": "fail", "test_b": "pass"})], None, ["2.0 → 2.1"]),
        ([("2.0", BOTH), ("2.1", BOTH), ("2.1", BOTH | FAIL)], "≤2.0–2.1 pass", []),
        ([OLD_A, ("2.1", PASS), ("2.1", FAIL)], "≤2.0 pass · 2.1 unstable", []),
        ([(version, PASS) for version in RELEASES], "≤2.9.1–2.10.0.post1 pass", []),
    ],
)
def test_statement_of_a_history_has_runs_of_equal_words_and_the_changes_between_them(
    versions: Any, expected: str | None, points: list[str]
) -> None:
    """`versions` are outcomes of one test in versions 2.0, 2.1, ..., or tests by version."""
    if isinstance(versions, str):
        outcomes = [word.replace("-", " ").replace(":", ": ") for word in versions.split()]
        versions = [(f"2.{number}", {"test_a": outcome}) for number, outcome in enumerate(outcomes)]
    line_history = history_of(*versions)
    assert expected in (None, statement_of(line_history))
    assert [interval(line_history.line, point) for point in line_history.points] == points


def test_change_of_a_history_has_its_tests_signatures_columns_and_revision() -> None:
    line_history = history_of(("2.0", FAIL), ("2.1", {"test_a": "unstable"}), ("2.2", PASS))
    (point,) = line_history.points
    assert "(versions between that cannot decide: 2.1)" in markdown([line_history]).splitlines()
    assert change(point) == "fail → pass: 1 newly passing of 1 test"
    assert not point.worse
    (point,) = history_of(("2.0", {"test_a": "fail: raises"}), ("2.1", {"test_a": "fail: differs"})).points
    assert (point.kind, point.otherwise) == ("failure", (("test_a", "raises", "differs"),))
    (point,) = history_of(("2.0", BOTH), ("2.1", PASS), ("2.2", BOTH | {"test_b": "fail"})).points
    assert point.fails == ("test_b",)
    twice = only_line(*(make_judged_version(version, PASS) for version in ("2.0", "2.1", "2.1")))
    assert [len(column) for column in twice.records] == [1, 2]
    ordered = history_of(*((version, PASS) for version in RELEASES))
    names = [column.version for column in ordered.line.columns]
    assert names == ["2.9.1", "2.10.0rc2", "2.10.0rc10", "2.10.0", "2.10.0.post1"]
    for revision in (2, 0):
        line_history = history(
            only_line(make_judged_version("2.0", PASS), make_judged_version("2.1", FAIL, revision=revision))
        )
        assert (line_history.points, statement_of(line_history)) == ((), "≤2.0 pass · 2.1 fail (by other tests)")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (("fail", "pass"), ("fail", "fail"), "fails in more tests: 1 newly failing"),
        (("fail", "fail"), ("fail", "pass"), "fails in fewer tests: 1 newly"),
        (("fail", "pass"), ("pass", "fail"), "fails otherwise: 1 newly failing, 1"),
        (("pass", "unsupported"), ("pass", "pass"), "passes with other support"),
        (("pass", "pass"), ("pass", "unsupported"), "passes with other support"),
    ],
)
def test_change_within_an_equal_outcome_counts_its_tests(
    before: Sequence[str], after: Sequence[str], expected: str
) -> None:
    sides = (dict(zip(("test_a", "test_b"), outcomes, strict=True)) for outcomes in (before, after))
    line_history = history_of(*zip(("2.0", "2.1"), sides, strict=True))
    (point,) = line_history.points
    assert change(point).startswith(expected)
    assert point.worse is ("newly failing" in change(point) or "newly unsupported" in change(point))


def test_statement_across_a_gap_leaves_it_out() -> None:
    planned = [
        (planned_cell("2.1", "no wheel", released="2025-01-02", reason="none for cp311"), None),
        (planned_cell("2.2", released="2025-03-04", record="x.json"), make_judged_version("2.2", FAIL)),
    ]
    line_history = history(only_line(make_judged_version("2.0", FAIL), planned=planned))
    assert statement_of(line_history) == "≤2.0 fail · 2.2 fail (from 2025-03-04)"
    assert line_history.points == ()
    assert "Not judged: 2.1 (no wheel: none for cp311)." in markdown([line_history]).splitlines()


def test_history_of_refusals_for_an_instruction_set_has_no_point() -> None:
    old, new = make_judged_version("2.0", PASS), make_judged_version("2.1", {"test_a": "unsupported"})
    test, state = f"{CLAUSE}/test_a", new.cases[CLAUSE][f"{CLAUSE}/test_a"]
    needing = {CLAUSE: {test: replace(state, reason=frozenset({"needs", "avx512f"}))}}
    lacking = replace(new, instruction_sets=frozenset({"avx2"}), cases=needing)
    full = replace(old, instruction_sets=frozenset({"avx2", "avx512f"}))
    assert history(only_line(full, lacking)).points == ()
    assert len(history(only_line(replace(full, instruction_sets=frozenset({"avx2"})), lacking)).points) == 1


def test_alongside_names_companions_that_changed() -> None:
    line_history = history_of(("0.6.2+flax.0.10.7.optax.0.2.5", FAIL), ("0.9.2+flax.0.10.7.optax.0.2.8", PASS))
    assert alongside(line_history.line, line_history.points[0]) == ("optax 0.2.5 → 0.2.8",)


def versions_by_line(*members: Any, planned: Any = ()) -> dict[str, list[str]]:
    result = lines_of(*members, planned=planned)
    return {line.name: [column.version for column in line.columns] for line in result}


def test_lines_of_other_platforms_modes_and_seeds_are_separate() -> None:
    cpu = make_judged_version("2.0", PASS)
    gpu = replace(make_judged_version("2.1", FAIL), platform="x86_64 linux NVIDIA H100")
    arm = replace(make_judged_version("2.1", FAIL), platform="aarch64 linux cpu")
    result = lines_of(cpu, gpu, arm)
    assert [len(line.columns) for line in result] == [1, 1, 1]
    assert all(history(line).points == () for line in result)
    assert len(lines_of(cpu, replace(cpu, mode="compile"), replace(cpu, seed=1))) == 3
    builds = (make_judged_version(version, PASS) for version in ("2.6.0+cpu", "2.6.0+cu124", "2.7.0+cu126"))
    assert versions_by_line(*builds) == {"torch, eager, x86_64 linux cpu": ["2.6.0", "2.7.0"]}


def test_lines_of_a_companion_are_not_those_of_the_framework() -> None:
    versions = ("2.19.1+keras.3.8.0", "2.19.1+keras.3.15.1", "2.21.0+keras.3.15.1")
    members = [make_judged_version(version, PASS) for version in versions]
    assert versions_by_line(*members) == {
        "torch keras (torch 2.19.1), eager, x86_64 linux cpu": ["3.8.0", "3.15.1"],
        "torch, eager, x86_64 linux cpu": ["2.19.1", "2.21.0"],
    }
    (line,) = [line for line in lines_of(*members) if line.package == "torch"]
    assert [column.companions["keras"] for column in line.columns] == ["3.15.1", "3.15.1"]
    members = [make_judged_version(f"2.13.0+cpu.accelerate.{version}", PASS) for version in ("1.12.0", "1.15.0")]
    assert versions_by_line(*members) == {
        "torch accelerate (torch 2.13.0), eager, x86_64 linux cpu": ["1.12.0", "1.15.0"]
    }


def test_lines_of_a_plan_have_versions_without_a_record() -> None:
    planned = [
        (planned_cell("1.9", "timeout"), None),
        (planned_cell("2.1", "yanked", reason="broken"), None),
        (planned_cell("2.0.0"), None),
    ]
    (line,) = lines_of(make_judged_version("2.0", PASS), planned=planned)
    assert [(column.version, column.gap) for column in line.columns] == [
        ("1.9", "timeout"),
        ("2.0", ""),
        ("2.1", "yanked: broken"),
    ]


def keras(version: str, framework: str, record: bool = True) -> Any:
    cell = planned_cell(version, "judged" if record else "timeout", "keras", framework_version=framework)
    return cell, make_judged_version(f"{framework}+keras.{version}", PASS) if record else None


def test_lines_of_a_companion_are_one_for_each_framework_or_one_with_those_of_its_time() -> None:
    name = "torch keras (torch {}), eager, x86_64 linux cpu".format
    names = versions_by_line(make_judged_version("2.19.1+keras.3.15.1", PASS), planned=[keras("3.8.0", "2.19.1")])
    assert names[name("2.19.1")] == ["3.8.0", "3.15.1"]
    cells = [keras(version, framework) for framework in ("2.19.1", "2.21.0") for version in ("3.10.0", "3.11.0")]
    assert versions_by_line(planned=[*cells, keras("3.12.0", "2.21.0", record=False)]) == {
        name("2.19.1"): ["3.10.0", "3.11.0"],
        name("2.21.0"): ["3.10.0", "3.11.0", "3.12.0"],
    }
    cells = [keras("3.10.0", "2.19.1"), keras("3.11.0", "2.21.0"), keras("3.12.0", "2.21.0", record=False)]
    (line,) = lines_of(planned=cells)
    assert (line.fixed, [column.version for column in line.columns]) == ({}, ["3.10.0", "3.11.0", "3.12.0"])
    assert [column.companions.get("torch", "") for column in line.columns] == ["2.19.1", "2.21.0", ""]


def test_lines_of_ways_are_separate_and_no_mode_is_the_default_one() -> None:
    plain = PlannedCell("torch", "2.1", "", "", "timeout"), None
    by_way = PlannedCell("torch", "2.2", "", "", "timeout", ways=("x",)), None
    judged = make_judged_version("2.0", PASS)
    result = versions_by_line(judged, replace(judged, mode="eager by x"), planned=[plain, by_way])
    assert result == {
        "torch, eager, x86_64 linux cpu": ["2.0", "2.1"],
        "torch, eager by x, x86_64 linux cpu": ["2.0", "2.2"],
    }


def sweep_folder(folder: Path, document: Any) -> Path:
    (folder / "records").mkdir()
    write(folder / "records" / "a.json.gz", record("2.0", PASS))
    write(folder / "records" / "b.json.gz", record("2.2", FAIL))
    (folder / "outcomes.json").write_text(document if isinstance(document, str) else json.dumps(document))
    return folder


def test_gather_of_a_sweep_has_its_cells_and_other_records(tmp_path: Path) -> None:
    cells = [
        CELL,
        CELL | {"version": "2.1", "outcome": "no wheel", "record": "", "released": "2025-04-23"},
        CELL | {"version": "2.2", "record": "b.json.gz", "released": "2025-08-06"},
    ]
    (line,) = lines(gather([sweep_folder(tmp_path, {"version": 1, "cells": cells})]))
    line_history = history(line)
    assert statement(line, line_history.clauses[CLAUSE]) == "≤2.0 pass · 2.2 fail (from 2025-08-06)"
    assert len(line_history.points) == 1
    (tmp_path / "other").mkdir()
    folder = sweep_folder(tmp_path / "other", {"version": 1, "cells": [CELL]})
    assert len(gather([folder]).plain) == 1


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
def test_gather_of_a_damaged_list_is_refused_in_one_line(tmp_path: Path, document: Any) -> None:
    with pytest.raises(RecordError, match=r"outcomes\.json.*run the sweep again") as caught:
        gather([sweep_folder(tmp_path, document)])
    assert "\n" not in str(caught.value)


def test_gather_of_a_list_opens_no_record_outside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    outside = tmp_path / "outside.json"
    write(outside, record("9.9", PASS))
    cells = [CELL, CELL | {"version": "9.9", "record": "../../outside.json"}]
    result = gather([sweep_folder(tmp_path / "s", {"version": 1, "cells": cells})])
    assert [cell.version if cell else None for _, cell in result.planned] == ["2.0", None]


def two_lines() -> tuple[LineHistory, ...]:
    """Three versions in two modes, in which one clause changes twice and another does not."""
    outcomes = enumerate(("pass", "fail", "pass"))
    members = [
        make_judged_version(f"2.{n}", {"test_a": outcome, "resume.state/test_b": "pass"}) for n, outcome in outcomes
    ]
    return tuple(map(history, lines_of(*members, *(replace(judged, mode="slow") for judged in members))))


def test_markdown_of_hostile_records_has_no_markup() -> None:
    versions = []
    for text in HOSTILE:
        infected = make_infected_record(text)
        clauses = {"a.b": next(iter(infected.clauses.values()))}
        for version, ending in (("1", ""), ("2", "2")):
            verdicts = tuple(
                replace(v, clause="a.b", test=f"a.b/{v.test}", signature=f"{text}2" if ending else v.signature)
                for v in infected.verdicts
            )
            variant = replace(infected.variant, framework_version=f"{text}{version}")
            parts = {"clauses": clauses, "findings": {}, "variant": variant, "verdicts": verdicts}
            versions.append(condense(replace(infected, **parts)))
    result = [history(line) for line in lines_of(*versions)]
    assert sum(len(changes.points) for changes in result) >= len(HOSTILE) - 1
    assert re.search(r"(?<!\\)<[a-z/!]", markdown(result), re.IGNORECASE) is None
    json.loads(compact(result))


def test_compact_has_the_content_of_markdown() -> None:
    line_history = history_of(("2.0", {"test_a": "fail: x"}), ("2.1", PASS), ("2.2", PASS))
    (line,) = json.loads(compact([line_history]))["lines"]
    assert [entry["version"] for entry in line["versions"]] == ["2.0", "2.1", "2.2"]
    clause = line["clauses"]["scaling.skip"]
    assert clause["runs"] == [[0, 0, "f"], [1, 2, "p"]]
    assert clause["points"] == [
        {
            "between": [0, 1],
            "compared": 1,
            "explained": [],
            "kind": "outcome",
            "passes": ["test_a"],
            "words": ["f", "p"],
        }
    ]
    assert (
        "- `scaling.skip` fail → pass: 1 newly passing of 1 test. History: ≤2.0 fail · 2.1–2.2 pass. *unexplained*"
        in (markdown([line_history]).splitlines())
    )


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "history.json"
    path.write_text(compact(two_lines()), "utf-8")
    return path


def test_load_of_a_written_history_gives_the_same_one(written: Path) -> None:
    assert is_history(written)
    assert compact(load(written)) == written.read_text("utf-8")
    assert markdown(load(written)) == markdown(two_lines())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version":2', '"version":1', "version"),
        ('"lines":[', '"lines":[7,', "lines"),
        ('"runs":[[0,', '"runs":[[99,', "from version 99"),
        ('"between":[', '"between":[25,', "between"),
        ('"clauses":{', '"clauses":{"another":1,', "clauses"),
        ("resume.state", "../../victim/package", "regex"),
        ("", "", "name folders of records"),
        ("", "empty", "contains no record"),
    ],
)
def test_history_of_a_damaged_file_or_of_none_is_refused(
    written: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = written.read_text("utf-8")
    assert old in text
    written.write_text(text.replace(old, new, 1), "utf-8")
    for name in ("committed", "empty"):
        (written.parent / name).mkdir()
    monkeypatch.setattr("conformance.cli.sweep.COMMITTED", written.parent / "committed")
    argv = [str(written)] if old else [str(written.parent / "empty")] if new else []
    assert message in run_refused(capsys, "history", *argv)


@pytest.mark.parametrize(
    ("changes", "explains"),
    [
        ({}, True),
        ({"between": ("1.0", "2.0.1")}, True),
        ({"between": ("2.1", "2.2")}, False),
        ({"between": ("1.0", "2.0")}, False),
        ({"clauses": ("resume.*",)}, False),
        ({"tests": "*/test_b"}, False),
        ({"framework": "jax"}, False),
        ({"package": "keras"}, False),
    ],
)
def test_find_explanations_matches_versions_and_clauses(changes: dict[str, Any], explains: bool) -> None:
    line_history = history_of(("2.0", FAIL), ("2.1", PASS))
    result = find_explanations(line_history.line, line_history.points[0], [structs.replace(ENTRY, **changes)])
    assert result == ((("It was fixed", "https://example.org/1"),) if explains else ())


def test_find_explanations_of_a_companion_matches_its_versions() -> None:
    line = only_line(
        make_judged_version("1.0+keras.3.8.0", {"a": "fail"}), make_judged_version("1.1+keras.3.9.0", {"a": "pass"})
    )
    entry = structs.replace(ENTRY, package="keras", between=("3.8.0", "3.9.0"))
    assert find_explanations(line, history(line).points[0], [entry])
    assert not find_explanations(line, history(line).points[0], [structs.replace(entry, between=("3.9.0", "3.9.1"))])


def test_history_of_a_folder_joins_histories_and_records(tmp_path: Path, written: Path) -> None:
    write(tmp_path / "record.json.gz", record("2.0", PASS))
    out = tmp_path / "out" / "all.json"
    out.parent.mkdir()
    for path, count in ((str(written), 2), (str(tmp_path), 3)):
        assert main(["history", path, "--format", "json", "--output", str(out)]) == 0
        assert len(load(out)) == count
    assert main(["history", str(written), "--format", "markdown", "--output", str(out)]) == 0
    assert out.read_text("utf-8").startswith("## torch, eager")


def test_history_into_a_pipe_prints_a_line_for_each_clause_that_changed(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line_history, *_) = two_lines()
    assert main(["history", str(written)]) == 0
    entries = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(entries) == sum(bool(clause.points) for line in two_lines() for clause in line.clauses.values())
    name, clause, text, cause = entries[0]
    assert (name, cause) == (line_history.line.name, "unexplained")
    assert text == statement_of(line_history, clause)
    assert main(["history", str(written), "--clause", "resume.state"]) == 0
    assert "\tresume.state\t≤2.0–2.2 pass\t" in capsys.readouterr().out.splitlines()[0]
    assert "no clause 'a.b'" in run_refused(capsys, "history", str(written), "--clause", "a.b")


def test_history_of_committed_sweeps_in_a_terminal_is_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    for argv in ([], ["results/sweeps"], ["results/sweeps/jax.json"]):
        assert main(["history", *argv]) == 0
        assert "7 judged versions (0.4.38, " in capsys.readouterr().out
