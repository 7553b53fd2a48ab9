"""The report in a browser: its addresses, what is copied as an issue, and tables that are saved as JSON."""

from __future__ import annotations

import html
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from results import report
from results.record.model import Variant
from results.record.reading import Outcome
from results.show import clauses
from results.show.portability import Portability, words
from tests.support.reporting import HOSTILE, baselines, record
from tools import browser
from tools.browser import Browser, in_browser, visible_clauses


def search(page: Browser, text: str) -> None:
    """Types into the search field."""
    page.driver.find_element("id", "search").send_keys(text)


@in_browser
def test_search_and_filters_are_in_the_address(shown: Browser, pages: Path) -> None:
    every = visible_clauses(shown)
    search(shown, "grad & loss")
    shown.choose("family", "scaling")
    shown.choose("across", "broken in tf")
    shown.choose("run", shown.run("return document.querySelector('#run option:last-child').textContent"))
    shown.driver.find_element("id", "lonely").click()
    shown.run("document.getElementById('lonely').blur()")
    wanted = "#?search=grad+%26+loss&family=scaling&across=broken+in+tf&run=torch-eager&lonely=yes"
    shown.wait(f"location.hash === '{wanted}'")
    narrowed = visible_clauses(shown)
    shown.open(pages / "baselines.html", wanted)
    assert visible_clauses(shown) == narrowed != every
    assert shown.run("return document.getElementById('search').value") == "grad & loss"
    assert shown.run("return document.getElementById('lonely').checked")
    shown.open(pages / "baselines.html", "#?family=no-such-family&outcome=known")
    known = {v.clause for one in baselines() for v in one.verdicts if v.outcome is Outcome.KNOWN}
    assert set(visible_clauses(shown)) == known, "what the address names and the page lacks is passed over"
    shown.driver.find_element("css selector", "#filters [type=reset]").click()
    shown.wait("location.hash === ''")
    assert visible_clauses(shown) == every


@in_browser
def test_back_and_forward_go_through_filters_and_cells(shown: Browser) -> None:
    every = visible_clauses(shown)
    shown.choose("family", "scaling")
    shown.wait("location.hash === '#?family=scaling'")
    scaling = visible_clauses(shown)
    shown.choose("level", "OBSERVATION")
    shown.wait("location.hash === '#?family=scaling&level=OBSERVATION'")
    observed = visible_clauses(shown)
    shown.run("document.querySelector('nav a[href=\"#matrix\"]').click()")
    shown.wait("location.hash === '#matrix'")
    assert visible_clauses(shown) == observed, "a link within the page leaves the filters as they are"
    shown.run("document.getElementById('scaling.paper-defaults@torch-eager').querySelector('button').click()")
    shown.wait("location.hash === '#scaling.paper-defaults@torch-eager'")

    shown.driver.back()
    shown.wait("location.hash === '#matrix' && !document.getElementById('cell').open")
    shown.driver.forward()
    shown.wait("document.getElementById('cell').open")
    shown.press("\ue00c")
    shown.wait("location.hash === '#matrix'")
    assert visible_clauses(shown) == observed
    for fragment, expected in (("#?family=scaling&level=OBSERVATION", observed), ("#?family=scaling", scaling)):
        shown.driver.back()
        shown.wait(f"location.hash === '{fragment}'")
        assert visible_clauses(shown) == expected
    shown.driver.back()
    shown.wait("location.hash === ''")
    assert visible_clauses(shown) == every
    shown.driver.forward()
    shown.wait("location.hash === '#?family=scaling'")
    assert visible_clauses(shown) == scaling


@in_browser
def test_an_address_names_a_clause_in_a_framework(shown: Browser, pages: Path) -> None:
    shown.open(pages / "baselines.html", "#scaling.automaton@torch-eager")
    shown.wait("document.getElementById('cell').open")
    assert shown.run("return document.getElementById('cell-title').textContent") == "scaling.automaton"
    assert shown.run("return document.getElementById('cell-run').textContent").startswith("torch ")
    shown.driver.find_element("id", "cell-close").click()
    shown.wait("location.hash === ''")
    assert shown.run("return document.activeElement.closest('td').id") == "scaling.automaton@torch-eager"
    shown.open(pages / "baselines.html", "#no.such-clause@torch-eager")
    assert not shown.run("return document.getElementById('cell').open")


@in_browser
def test_a_link_to_a_hidden_clause_shows_it(shown: Browser, pages: Path) -> None:
    shown.open(pages / "baselines.html", "#?family=scaling")
    shown.run("document.querySelector('#findings a[href=\"#clause-resume.altered-file\"]').click()")
    shown.wait("location.hash === '#clause-resume.altered-file'")
    assert "resume.altered-file" in visible_clauses(shown)


@in_browser
def test_a_word_across_frameworks_narrows_the_matrix(shown: Browser) -> None:
    said = words(baselines())
    for choice, expected in (
        ("portable", {clause for clause, word in said.items() if word.kind is Portability.PORTABLE}),
        ("broken", {clause for clause, word in said.items() if word.broken}),
        ("broken in jax", {clause for clause, word in said.items() if any(b.framework == "jax" for b in word.broken)}),
    ):
        shown.choose("across", choice)
        assert set(visible_clauses(shown)) == expected


def issues(page: Browser) -> list[str]:
    """The Markdown of every test of the open cell that can be copied as an issue, read from where it is shown."""
    page.run("for (const details of document.querySelectorAll('#cell details')) details.open = true")
    page.wait("document.querySelectorAll('#cell .issue').length > 0")
    page.run("for (const button of document.querySelectorAll('#cell .issue')) button.click()")
    result: list[str] = page.run("return [...document.querySelectorAll('#cell textarea')].map((area) => area.value)")
    return result


@in_browser
@pytest.mark.parametrize("where", ["clipboard", "no clipboard"])
def test_a_verdict_that_did_not_hold_is_copied_as_an_issue(shown: Browser, pages: Path, where: str) -> None:
    one = baselines()[-1]
    verdict = next(v for v in one.verdicts if v.clause == "scaling.stays-positive" and v.outcome is Outcome.KNOWN)
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    shown.driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": permissions})
    shown.open(pages / "baselines.html", "#scaling.stays-positive@torch-eager")
    shown.wait("document.querySelector('#cell .issue')")
    if where == "no clipboard":
        shown.run("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        shown.run(
            "document.addEventListener('copy', () => { document.body.dataset.copied = String(document.getSelection())"
            " || document.activeElement.value })"
        )
    shown.driver.find_element("css selector", "#cell .issue").click()
    shown.wait("document.getElementById('cell-status').textContent !== ''")
    assert shown.run("return document.getElementById('cell-status').textContent") == "Copied."
    copied = shown.run(
        "return document.body.dataset.copied" if where == "no clipboard" else "return navigator.clipboard.readText()"
    )
    text = shown.run("return document.querySelector('#cell textarea').value")
    assert copied == text
    finding = one.findings[verdict.finding]
    assert text.startswith("# torch 2.13.0+cpu fails `scaling.stays-positive`\n")
    for part in (verdict.finding, finding.kind.value, verdict.repro, verdict.signature, finding.link):
        assert part in text
    for name, value in one.variant.environment.items():
        assert words_of(f"{name}: {value}") in words_of(text)
    (check, *_) = verdict.checks
    assert words_of(check.what) in words_of(text)
    assert "| result | what | got |" in text
    assert words_of(one.clauses[verdict.clause].requirement) in words_of(text)


def words_of(markdown: str) -> str:
    """A text of Markdown without what keeps its characters from having a meaning."""
    return " ".join(html.unescape(re.sub(r"\\(.)", r"\1", markdown)).replace("\u200b", "").split())


@in_browser
def test_what_passed_is_no_issue(shown: Browser) -> None:
    shown.open_cell(".matrix .w-pass")
    shown.run("for (const details of document.querySelectorAll('#cell details')) details.open = true")
    shown.wait("document.querySelector('#cell .inside')")
    assert not shown.run("return document.querySelectorAll('#cell .issue').length")


@in_browser
def test_an_issue_that_cannot_be_copied_is_selected(shown: Browser) -> None:
    shown.run("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    shown.run("document.execCommand = () => false")
    shown.open_cell(".matrix .w-known")
    shown.driver.find_element("css selector", "#cell .issue").click()
    shown.wait("document.getElementById('cell-status').textContent.startsWith('Selected')")
    assert shown.run(
        "const area = document.activeElement;"
        "return area.matches('textarea') && area.selectionEnd - area.selectionStart === area.value.length"
    )


def saved(page: Browser, folder: Path, selector: str) -> Any:
    """What the JSON button behind the region that a selector names writes."""
    behavior = {"behavior": "allow", "downloadPath": str(folder)}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", behavior)
    page.run(f"document.querySelector('{selector}').nextElementSibling.querySelector('button').click()")
    end = time.monotonic() + browser.PATIENCE
    while not (files := [path for path in folder.iterdir() if path.suffix == ".json"]):
        assert time.monotonic() < end, "nothing was saved"
        time.sleep(0.05)
    return json.loads(files[0].read_bytes())


@in_browser
def test_the_matrix_is_saved_as_json_as_it_is_filtered(shown: Browser, tmp_path: Path) -> None:
    shown.choose("family", "scaling")
    rows = saved(shown, tmp_path, "#matrix .scroll")
    said = words(baselines())
    assert [row["clause"] for row in rows] == visible_clauses(shown)
    assert [row["across"] for row in rows] == [str(said[row["clause"]]) for row in rows]
    torch = {row["clause"]: result for row in rows for result in row["results"] if result["run"].startswith("torch")}
    grouped = clauses.by_clause(baselines()[-1])
    for clause, result in torch.items():
        assert result["outcome"] == clauses.outcome(grouped[clause])
        assert [test["outcome"] for test in result["tests"]] == [v.outcome for v in grouped[clause]]
    assert next(row for row in rows if row["clause"] == "scaling.automaton")["level"] == "MUST"


@in_browser
def test_other_tables_are_saved_as_json_too(shown: Browser, tmp_path: Path) -> None:
    rows = saved(shown, tmp_path, "#environment .scroll")
    versions = next(row for row in rows if row["Property"] == "version")
    assert [*versions.values()][1:] == [one.variant.framework_version for one in baselines()]
    regions = "main .scroll:not(.plot)"
    assert shown.run(
        f"return [...document.querySelectorAll('{regions}')].every((r) => r.nextElementSibling.matches("
        "'.export') && r.nextElementSibling.textContent.startsWith('JSON of the table '))"
    )


@in_browser
def test_what_nobody_confirmed_and_what_was_repeated_is_said(chromium: Browser, tmp_path: Path) -> None:
    one = record("torch", {"s.known": Outcome.KNOWN, "s.shaky": Outcome.UNSTABLE})
    known, shaky = one.verdicts
    variant = Variant("2", {}, {"numpy": "2.3.0"}, {"TORCH_LOGS": "all"}, ("avx2",))
    verdicts = (replace(known, inferred_from="1.9"), replace(shaky, repeats=("pass", "fail (loss-nan)")))
    report.write([replace(one, variant=variant, verdicts=verdicts)], tmp_path / "page.html")
    chromium.open(tmp_path / "page.html", "#s.known@torch-m")
    chromium.wait("document.getElementById('cell').open")
    text = chromium.run("return document.getElementById('cell').innerText")
    assert "Not confirmed here: the failure was observed in 1.9." in text
    (issue,) = issues(chromium)
    for part in ("Observed in 1.9", "- numpy: 2.3.0", r"- TORCH\_LOGS: all", "- instruction sets: avx2"):
        assert part in issue
    chromium.open(tmp_path / "page.html", "#s.shaky@torch-m")
    chromium.wait("document.getElementById('cell').open")
    text = chromium.run("return document.getElementById('cell').innerText")
    assert "Repeated in a new process: pass, fail (loss-nan)." in text
    assert not chromium.run("return document.querySelectorAll('#cell .issue').length"), "it held when it was repeated"
    assert chromium.console() == []


@in_browser
def test_hostile_text_in_an_issue_only_shows_itself(chromium: Browser, pages: Path) -> None:
    chromium.open(pages / "infected.html")
    texts = []
    for number in chromium.run(
        "return [...document.querySelectorAll('.matrix [data-cell]')].map(({dataset}) => dataset.cell)"
    ):
        chromium.open_cell(f"[data-cell='{number}']")
        texts += issues(chromium)
        chromium.run("document.getElementById('cell').close()")
    assert len(texts) == sum(outcome in clauses.FAILURE_OUTCOMES for outcome in Outcome) * (len(HOSTILE) + 1)
    elements = {"h1", "h2", "p", "ul", "li", "code", "pre", "strong", "details", "summary", "a"}
    elements |= {"table", "thead", "tbody", "tr", "th", "td"}
    for text in texts:
        page = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
        assert set(re.findall(r"<([a-zA-Z0-9]+)", page)) <= elements
        assert not re.findall(r'href="(?!https?://)', page)
    assert chromium.run("return typeof window.canary") == "undefined"
    assert chromium.console() == []
