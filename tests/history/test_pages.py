"""The pages and the data of a history: well formed, without a request, and filtered by their address."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from conformance.cli.main import main
from results.history import pages as history_pages
from results.history.changes import LineHistory, history
from results.history.documents import VERSION, compact, is_history, load
from results.history.explanations import Explanation, explained, explanations
from results.history.lines import lines
from results.history.statements import markdown
from results.history.states import CaseState, ClauseFacts, JudgedVersion
from results.record.files import RecordError
from results.record.reading import write
from tests.support.reporting import HOSTILE, infected
from tests.support.versions import Condenser, gathered, history_of, judged, only_line, record
from tools.browser import Browser, Reader, in_browser

VERSIONS, CLAUSES, LINES = 80, 130, 8
WRITTEN = 8
CLAUSE_PAGE = re.compile(r"clauses/family[0-9]+\.a-clause-of-usual-length-[0-9]+\.html")


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The start page of eighty versions, and some pages of clauses; all of them are counted."""
    path = tmp_path_factory.mktemp("history")
    (path / "clauses").mkdir()
    for number, (name, text) in enumerate(history_pages.documents(many())):
        if number < WRITTEN:
            (path / name).write_text(text, "utf-8")
    assert number + 1 == 2 * CLAUSES + 2
    return path


def test_every_page_has_its_data_beside_it(folder: Path) -> None:
    there = {str(page.relative_to(folder)) for page in folder.rglob("*.html")}
    for page in map(folder.joinpath, sorted(there)):
        text = page.read_text("utf-8")
        assert Reader(text).wrong == []
        assert json.loads(page.with_suffix(".json").read_text("utf-8"))["version"] == VERSION
        for attributes, _ in Reader(text).all("a"):
            address = str(attributes["href"])
            named = page.parent / address
            assert address.startswith("#") or named.is_file() or CLAUSE_PAGE.fullmatch(address)


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
            yield Condenser()(replace(safe, variant=variant, verdicts=verdicts_of_version))


def test_pages_of_an_earlier_history_are_removed(tmp_path: Path) -> None:
    one = history_of(("2.0", {"test_a": "pass"}))
    history_pages.write(many()[:1], tmp_path)
    for name in ("notes.html", "clauses/notes.html"):
        (tmp_path / name).write_text("a user's own", "utf-8")
    history_pages.write([one], tmp_path)
    pages = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    own = {"notes.html", "clauses/notes.html"}
    assert pages == own | {"index.html", "index.json", "clauses/scaling.skip.html", "clauses/scaling.skip.json"}


@pytest.mark.parametrize("content", ['{"version":7}', '{"version":2,"lines":[]}', "[]"])
def test_an_index_that_is_no_history_removes_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "clauses").mkdir()
    (tmp_path / "index.json").write_text(content, "utf-8")
    (tmp_path / "clauses" / "notes.html").write_text("a user's own", "utf-8")
    history_pages.write([history_of(("2.0", {"test_a": "pass"}))], tmp_path)
    assert (tmp_path / "clauses" / "notes.html").is_file()


def test_no_page_is_written_outside_of_its_folder(tmp_path: Path) -> None:
    one, name = history_of(("2.0", {"test_a": "pass"})), "../../victim/package"
    named = replace(one, clauses={name: replace(one.clauses["scaling.skip"], clause=name)})
    (tmp_path / "victim").mkdir()
    with pytest.raises(RecordError, match="leads out of it; correct the names in the input"):
        history_pages.write([named], tmp_path / "pages")
    assert [*(tmp_path / "victim").iterdir()] == []


def test_nothing_in_a_record_acts_in_a_page() -> None:
    result = [history(line) for line in lines(gathered(*hostile()))]
    assert sum(len(one.points) for one in result) >= len(HOSTILE) - 1
    for name, text in history_pages.documents(result):
        if name.endswith(".html"):
            read = Reader(text)
            assert read.wrong == []
            assert {tag for tag, _ in read.elements} & {"iframe", "img", "base", "svg", "embed"} == set()
            assert len(read.all("script")) <= 2
            assert not [a for tag, a in read.elements if any(key.startswith("on") for key in a)]
        else:
            json.loads(text)
    assert re.search(r"(?<!\\)<[a-z/!]", markdown(result), re.IGNORECASE) is None


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


def test_the_committed_explanations_are_read() -> None:
    assert len(explanations()) >= 4


@pytest.mark.parametrize(("style", "begins"), [("json", '{"version":2'), ("markdown", "## torch, eager")])
def test_the_command(tmp_path: Path, style: str, begins: str) -> None:
    for place, outcome in enumerate(("pass", "fail")):
        write(tmp_path / f"{place}.json.gz", record(f"2.{place}", {"test_a": outcome}))
    assert main(["history", str(tmp_path), "--format", style, "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text("utf-8").startswith(begins)
    assert main(["history", str(tmp_path / "0.json.gz"), "--output", str(tmp_path / "pages")]) == 0
    assert (tmp_path / "pages" / "clauses" / "scaling.skip.html").is_file()


def test_a_folder_may_have_histories_and_records(tmp_path: Path, written: Path) -> None:
    write(tmp_path / "record.json.gz", record("2.0", {"test_a": "pass"}))
    out = tmp_path / "out" / "all.json"
    out.parent.mkdir()
    for words, lines_ in ((str(written), LINES), (str(tmp_path), LINES + 1)):
        assert main(["history", words, "--format", "json", "--output", str(out)]) == 0
        assert len(load(out)) == lines_


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


def visible_clauses(chromium: Browser) -> Sequence[str]:
    """Clauses of the rows that are visible."""
    result: Sequence[str] = chromium.run(
        "return [...document.getElementById('rows').rows].filter((r) => !r.hidden).map((r) => r.cells[0].textContent)"
    )
    return result


@in_browser
def test_the_pages_in_a_browser(chromium: Browser, folder: Path) -> None:
    chromium.resize(1280)
    chromium.open(folder / "index.html")
    changed = len(visible_clauses(chromium))
    assert changed == sum(bool(clause.points) for one in many() for clause in one.clauses.values())
    assert chromium.violations("main section:nth-of-type(2)") == []
    chromium.choose("family", "family3")
    chromium.choose("outcome", "fail")
    narrow = visible_clauses(chromium)
    assert 0 < len(narrow) < changed
    assert all(name.startswith("family3.") for name in narrow)
    assert chromium.run("return location.hash") == "#?family=family3&outcome=fail"
    chromium.run("location.reload()")
    chromium.wait("document.readyState === 'complete'")
    assert visible_clauses(chromium) == narrow
    chromium.run("document.getElementById('changed').click()")
    assert "changed=no" in chromium.run("return location.hash")
    chromium.run("document.querySelector('#filters [type=reset]').click()")
    chromium.wait("location.hash === ''")
    assert len(visible_clauses(chromium)) == changed
    chromium.driver.find_element("id", "search").send_keys("family3. fail")
    found = visible_clauses(chromium)
    assert 0 < len(found) < changed
    assert all(name.startswith("family3.") for name in found)
    chromium.resize(390)
    heading = "return document.querySelector('#newest th:nth-child(3)').getBoundingClientRect().left"
    assert chromium.run(heading) < 390 - 100
    chromium.resize(1280)
    chromium.open(next((folder / "clauses").glob("*.html")))
    for preference in ("light", "dark"):
        chromium.prefer(preference)
        assert chromium.violations() == []
    assert chromium.console() == []
    assert chromium.requests() == []
