"""README and docs: pages, generated blocks and links."""

import re
import time
from collections import Counter
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.known_failures.reading import load_known
from conformance.runner.baselines import BASELINES
from conformance.spec.clauses import load_clauses
from results.history.changes import LineHistory, find_explanations, load
from results.record import reading
from results.record.folders import list_records
from tests.support.suite_runs import ROOT
from tools.browser import chromium, in_browser
from tools.commands import commands
from tools.docs import findings, generate, site, summaries
from tools.docs.upgrades import SWEEPS, example, histories

DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = (*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *DOCS)
UNEXPLAINED = {"jax composition.shipped-gradients"}
"""Changes whose cause is not known: the gradient of gelu at -5 in JAX 0.4.38."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, in which each block is its name."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "texts", lambda names: {name: name for name in names})
        site.build(folder)
    return folder


def test_pages_have_every_block_once() -> None:
    counts = Counter(name for page in generate.pages() for name in generate.markers(page.read_text("utf-8")))
    assert counts == Counter({name for names in generate.SOURCES.values() for name in names} | generate.MEASURED)


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_committed_pages_have_placeholders(page: Path) -> None:
    text = page.read_text("utf-8")
    for name in set(generate.markers(text)) - generate.MEASURED - generate.SUMMARIES:
        assert generate.between(page, text, name) == generate.PLACEHOLDER.format(page.stem), name


@pytest.mark.slow
@pytest.mark.parametrize("source", sorted(generate.SOURCES.keys() - {"tools.docs.clauses:blocks"}))
def test_sources_make_their_blocks(source: str) -> None:
    """The blocks of clauses take minutes and are left out; `tox -e docs` makes them."""
    assert {*generate.resolve(source)()} == {*generate.SOURCES[source]}


def test_site_has_every_page_and_needs_no_network(built: Path) -> None:
    pages = {page.stem for page in built.glob("*.html")} - {"404"}
    assert pages == {*site.names(), "index"}
    for name in pages:
        text = (built / f"{name}.html").read_text("utf-8")
        assert "Generated: " not in text, name
        assert not re.search(r'<(?:script|img)[^>]*src="https?:|<link[^>]*href="https?:', text), name
    assert 'id="scaling.skip-is-atomic"' in (built / "clauses.html").read_text("utf-8")


@in_browser
def test_search_of_the_site_works_without_a_server(built: Path, tmp_path: Path) -> None:
    with chromium(tmp_path) as browser:
        browser.open(built / "index.html")
        browser.run("document.querySelector('[data-md-component=search-query]').focus()")
        browser.driver.switch_to.active_element.send_keys("covering array")
        results = "return [...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
        end = time.monotonic() + 60
        while not (result := browser.driver.execute_script(results)) and time.monotonic() < end:
            time.sleep(0.2)
    assert any("tolerances.html" in link for link in result)


def test_docs_with_dead_links_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mkdocs")
    for name in ("mkdocs.yml", "tools/docs/site.py", "docs/assets/iframe-worker.js"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    links = "[a](nowhere.md), [a](other.md#nothing), ![a](lost.png) and the [README](../README.md)"
    (tmp_path / "README.md").write_text("# Project\n\nIts [documentation](docs/README.md).\n")
    (tmp_path / "docs" / "README.md").write_text("# Documentation\n\n**Use it**\n\n- [Other](other.md): a page\n")
    (tmp_path / "docs" / "other.md").write_text(f"# Other\n\n{links}\n")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(site, "LISTS", {})
    assert main(["docs", str(tmp_path / "site")], commands) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(problem in line for problem in ("nowhere.md", "#nothing", "lost.png")), line


def test_docs_page_prints_it_with_its_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "--page", "adapters"], commands) == 0
    printed = capsys.readouterr().out
    assert "Generated: " not in printed
    assert generate.texts(["ways"])["ways"] in printed
    assert main(["docs", "--page", "../README"], commands) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "there is no page '../README'; there are adapters, " in line


def test_index_names_every_page() -> None:
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "README.md").read_text("utf-8")))
    assert named == {page.name for page in DOCS} - {"README.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_checkout_have_targets(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(((?!https?:)[^)#\s]*(?:#[^)\s]*)?)\)", text):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", linked.read_text("utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
            assert anchor in anchors or f'id="{anchor}"' in linked.read_text("utf-8"), target


def test_committed_tables_and_schema_are_up_to_date() -> None:
    assert generate.stale(write=False) == [], "run `python -m tools pages`"


def test_pages_with_a_stale_block_writes_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "README.md"
    page.write_text("Above.\n<!-- ranks: begin -->\nold\n<!-- ranks: end -->\nBelow.\n")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.stale(write=False) == ["README.md"]
    assert "\nold\n" in page.read_text()
    assert main(["pages"], commands) == 0
    assert page.read_text().startswith("Above.\n<!-- ranks: begin -->\n")
    assert "\n| family | jax `sharded` |" in page.read_text()
    assert page.read_text().endswith("<!-- ranks: end -->\nBelow.\n")
    assert generate.stale(write=False) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<!-- ranks: begin -->\n", "there is no <!-- ranks: begin --> … <!-- ranks: end -->"),
        ("<!-- score: begin --><!-- score: end -->", "nothing makes a block 'score'"),
    ],
)
def test_pages_of_a_wrong_readme_is_refused_in_one_line(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    page.write_text(text)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert main(["pages"], commands) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line
    assert page.read_text() == text


def test_place_of_a_block_leaves_placeholders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").touch()
    page = tmp_path / "docs" / "some.md"
    blank = generate.PLACEHOLDER.format("some")
    page.write_text(f"<!-- a: begin -->\nold\n<!-- a: end -->\n<!-- b: begin -->\n{blank}\n<!-- b: end -->\n")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    generate.place({"a": "new", "b": "new"})
    assert page.read_text() == f"<!-- a: begin -->\nnew\n<!-- a: end -->\n<!-- b: begin -->\n{blank}\n<!-- b: end -->\n"
    with pytest.raises(generate.PageError, match="no page has <!-- such a block: begin -->"):
        generate.place({"such a block": ""})


def test_page_of_findings_has_every_finding_clause_and_workaround() -> None:
    known = load_known()
    page, _, workarounds = findings.page().partition("## Workarounds")
    assert sum(line.startswith("- ") for line in page.splitlines()) == len(known.findings)
    assert all(f"`{entry.clause}`" in page for entry in known.expectations)
    _, *rows = (line for line in workarounds.splitlines() if line.startswith("| "))
    assert len(rows) == len(known.workarounds)
    assert all(workaround.does in "\n".join(rows) for workaround in known.workarounds)


def test_techniques_are_the_families() -> None:
    assert {*summaries.TECHNIQUES} == {clause.family for clause in load_clauses().values()}


def test_outcomes_have_a_row_for_every_series() -> None:
    series = {reading.load(path).series for path in list_records(BASELINES)}
    assert len(summaries.blocks()["outcomes"].splitlines()) == 2 + len(series)


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("*.json")), ids=lambda path: path.stem)
def test_committed_histories_have_a_plan(path: Path) -> None:
    assert path.with_suffix(".toml").is_file()
    assert sum(column.judged for history in load(path) for column in history.line.columns)


@pytest.mark.parametrize("history", histories(), ids=lambda history: history.line.name)
def test_changes_of_histories_have_an_explanation(history: LineHistory) -> None:
    line = history.line
    result = {f"{line.framework} {point.clause}" for point in history.points if not find_explanations(line, point)}
    assert result <= UNEXPLAINED


def test_example_compares_nearly_all_tests() -> None:
    pair = example()
    common = {verdict.test for verdict in pair.old.verdicts} & {verdict.test for verdict in pair.new.verdicts}
    assert not pair.refusals
    assert pair.compared > 0.945 * len(common) > 600  # 115 tests train other recipes since the old record
