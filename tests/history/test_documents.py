"""Histories as data and as a table, and what explains their changes."""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from conformance.cli.main import main
from results.history.changes import Explanation, LineHistory, explained, explanations, history, markdown, statement
from results.history.documents import compact, is_history, load
from results.history.versions import CaseState, ClauseFacts, JudgedVersion, lines
from results.record.reading import write
from tests.support.reporting import HOSTILE, infected
from tests.support.suite_runs import refused
from tests.support.versions import condense, gathered, history_of, judged, only_line, record

VERSIONS, CLAUSES, LINES = 80, 130, 8


@cache
def many() -> tuple[LineHistory, ...]:
    """Eighty versions in eight lines; a twentieth of the clauses change from one version to the next."""
    rng = random.Random(0)
    facts = ClauseFacts(
        "MUST", "A requirement of the usual length, which says what a framework must do, and when.", "f"
    )
    names = [f"family{number % 14}.a-clause-of-usual-length-{number}" for number in range(CLAUSES)]
    pool = []
    for line in range(LINES):
        words = dict.fromkeys(names, "pass")
        for version in range(VERSIONS // LINES):
            for name in rng.sample(names, CLAUSES // 20):
                words[name] = rng.choice(("pass", "fail", "unsupported", "abstain"))
            cases = {
                name: {f"{name}/test_{test}": CaseState(word, (1, "")) for test in range(8)}
                for name, word in words.items()
            }
            one = judged(f"2.{version}", {"test_a": "pass"})
            clauses = {name: replace(facts, family=name.partition(".")[0]) for name in names}
            pool.append(replace(one, mode=f"mode {line}", cases=cases, clauses=clauses))
    return tuple(map(history, lines(gathered(*pool))))


def hostile() -> Iterator[JudgedVersion]:
    """Records every text of which is hostile, two versions of each."""
    for text in HOSTILE:
        whole = infected(text)
        clauses = {"a.b": next(iter(whole.clauses.values()))}
        verdicts = tuple(replace(v, clause="a.b", test=f"a.b/{v.test}") for v in whole.verdicts)
        safe = replace(whole, clauses=clauses, verdicts=verdicts, findings={})
        for version, verdicts_of_version in (
            ("1", verdicts),
            ("2", tuple(replace(v, signature=f"{text}2") for v in verdicts)),
        ):
            variant = replace(whole.variant, framework_version=f"{text}{version}")
            yield condense(replace(safe, variant=variant, verdicts=verdicts_of_version))


def test_markdown_hostile_records_has_no_markup() -> None:
    result = [history(line) for line in lines(gathered(*hostile()))]
    assert sum(len(one.points) for one in result) >= len(HOSTILE) - 1
    assert re.search(r"(?<!\\)<[a-z/!]", markdown(result), re.IGNORECASE) is None
    json.loads(compact(result))


def test_the_data_says_what_the_page_says() -> None:
    one = history_of(("2.0", {"test_a": "fail: x"}), ("2.1", {"test_a": "pass"}), ("2.2", {"test_a": "pass"}))
    (line,) = json.loads(compact([one]))["lines"]
    assert [each["version"] for each in line["versions"]] == ["2.0", "2.1", "2.2"]
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
        in (markdown([one]).splitlines())
    )


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A history of several lines as a file."""
    path = tmp_path / "history.json"
    path.write_text(compact(many()), "utf-8")
    return path


def test_written_history_is_read_whole(written: Path) -> None:
    assert is_history(written)
    assert compact(load(written)) == written.read_text("utf-8")
    assert markdown(load(written)) == markdown(many())


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"version":2', '"version":1', "version"),
        ('"lines":[', '"lines":[7,', "lines"),
        ('"runs":[[0,', '"runs":[[99,', "from version 99"),
        ('"between":[', '"between":[25,', "between"),
        ('"clauses":{', '"clauses":{"another":1,', "clauses"),
        ("family0.a-clause-of-usual-length-0", "../../victim/package", "regex"),
    ],
)
def test_damaged_history_is_refused_in_one_line(
    written: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, says: str
) -> None:
    text = written.read_text("utf-8")
    assert old in text
    written.write_text(text.replace(old, new, 1), "utf-8")
    assert main(["history", str(written)]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert says in said


ENTRY = Explanation("torch", "torch", ("scaling.*",), ("2.0", "2.1"), "It was mended", "https://example.org/1")


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
def test_an_explanation_is_of_its_versions_and_clauses(changes: dict[str, Any], explains: bool) -> None:
    one = history_of(("2.0", {"test_a": "fail"}), ("2.1", {"test_a": "pass"}))
    result = explained(one.line, one.points[0], [structs.replace(ENTRY, **changes)])
    assert result == ((("It was mended", "https://example.org/1"),) if explains else ())


def test_a_companion_explains_a_change_in_the_line_of_the_framework() -> None:
    line = only_line(judged("1.0+keras.3.8.0", {"a": "fail"}), judged("1.1+keras.3.9.0", {"a": "pass"}))
    entry = structs.replace(ENTRY, package="keras", between=("3.8.0", "3.9.0"))
    assert explained(line, history(line).points[0], [entry])
    assert not explained(line, history(line).points[0], [structs.replace(entry, between=("3.9.0", "3.9.1"))])


@pytest.mark.parametrize("wrong", ["x = 1", "[[explanation]]", 'clauses = "a"', 'link = "http://x"', "between = []"])
def test_a_wrong_entry_is_refused(tmp_path: Path, wrong: str) -> None:
    key = wrong.partition(" =")[0]
    good = {
        "framework": '"torch"',
        "package": '"torch"',
        "clauses": '["a.b"]',
        "between": '["1", "2"]',
        "text": '"t"',
        "link": '"https://x"',
    }
    body = "\n".join(f"{name} = {value}" for name, value in good.items() if name != key)
    text = wrong if wrong.startswith(("x", "[[")) else f"[[explanation]]\n{wrong}\n{body}"
    (tmp_path / "e.toml").write_text(text)
    with pytest.raises(ValueError, match=r"^e\.toml: "):
        explanations(tmp_path / "e.toml")


@pytest.mark.parametrize(("style", "begins"), [("json", '{"version":2'), ("markdown", "## torch, eager")])
def test_the_command(tmp_path: Path, style: str, begins: str) -> None:
    for place, outcome in enumerate(("pass", "fail")):
        write(tmp_path / f"{place}.json.gz", record(f"2.{place}", {"test_a": outcome}))
    assert main(["history", str(tmp_path), "--format", style, "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text("utf-8").startswith(begins)


def test_a_folder_may_have_histories_and_records(tmp_path: Path, written: Path) -> None:
    write(tmp_path / "record.json.gz", record("2.0", {"test_a": "pass"}))
    out = tmp_path / "out" / "all.json"
    out.parent.mkdir()
    for words, lines_ in ((str(written), LINES), (str(tmp_path), LINES + 1)):
        assert main(["history", words, "--format", "json", "--output", str(out)]) == 0
        assert len(load(out)) == lines_


def test_history_into_a_pipe_prints_a_line_for_each_clause_that_changed(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (one, *_) = many()
    assert main(["history", str(written)]) == 0
    entries = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(entries) == sum(bool(clause.points) for line in many() for clause in line.clauses.values())
    name, clause, said, why = entries[0]
    assert (name, why) == (one.line.name, "unexplained")
    assert said == statement(one.line, one.clauses[clause])
    steady = next(name for name, clause in one.clauses.items() if not clause.points)
    assert main(["history", str(written), "--clause", steady]) == 0
    assert f"\t{steady}\t≤2.0–2.9 pass\t" in capsys.readouterr().out.splitlines()[0]
    assert "no clause 'a.b'" in refused(capsys, "history", str(written), "--clause", "a.b")


def test_history_committed_sweeps_in_a_terminal_is_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    for argv in ([], ["results/sweeps"], ["results/sweeps/jax.json"]):
        assert main(["history", *argv]) == 0
        assert "7 judged versions (0.4.38, " in capsys.readouterr().out


def test_a_checkout_without_histories_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conformance.cli.versions.history.COMMITTED", tmp_path)
    assert main(["history"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "name folders of records" in said


def test_a_folder_without_records_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
