"""The report in a browser: columns, filters, search, addresses of cells, curves, and hostile records."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from results import report
from results.record.reading import Outcome
from tests.support.recorded import HOSTILE, baselines, infected_page, page, record
from tools.browser import Browser, in_browser

pytestmark = in_browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("pages")
    (result / "baselines.html").write_bytes(page().encode())
    (result / "infected.html").write_bytes(infected_page().encode())
    return result


@pytest.fixture
def view(chromium: Browser, folder: Path) -> Iterator[Browser]:
    """A browser with the baselines' report; messages on the console and requests fail the test."""
    chromium.resize(1280)
    chromium.prefer("light")
    chromium.open(folder / "baselines.html")
    yield chromium
    assert chromium.console() == []
    assert chromium.requests() == []


def list_columns(browser: Browser) -> list[str]:
    """The slugs of the visible columns, if every row has exactly their cells."""
    result: list[str] = browser.run(
        """
        const isShown = (cell) => cell.checkVisibility();
        const [head, ...rows] = [...document.querySelectorAll(".matrix tr")].filter(isShown);
        const named = [...head.cells].filter((cell) => cell.dataset.slug && isShown(cell));
        const slugs = named.map((cell) => cell.dataset.slug);
        const counts = rows.map((row) => [...row.querySelectorAll("td")].filter(isShown).length);
        return counts.every((count) => count === slugs.length) ? slugs : counts;
        """
    )
    return result


def list_clauses(browser: Browser) -> set[str]:
    rows = "[...document.querySelectorAll('.clause')].filter((row) => row.checkVisibility())"
    return set(browser.run(f"return {rows}.map((row) => row.querySelector('code').textContent)"))


def read_dialog(browser: Browser) -> str:
    browser.wait("document.getElementById('cell').open")
    return " ".join(browser.run("return document.getElementById('cell').innerText").split())


def known_clauses(framework: str) -> set[str]:
    records = [record for record in baselines() if record.series.framework == framework]
    return {v.clause for record in records for v in record.verdicts if v.outcome is Outcome.KNOWN}


@pytest.mark.parametrize("width", [390, 1280])
def test_page_at_first_shows_a_column_for_each_framework(view: Browser, width: int) -> None:
    view.resize(width)
    assert [slug.partition("-")[0] for slug in list_columns(view)] == ["jax", "paddle", "reference", "tf", "torch"]
    right = "[...document.querySelectorAll('.matrix tr:not([hidden]) > *')].map((c) => c.getBoundingClientRect().right)"
    assert view.run(f"return Math.max(...{right})") <= width
    view.run("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert view.run("return document.documentElement.scrollWidth") <= width
    assert list_clauses(view) == set()
    view.run("document.querySelector('.family .open').click()")
    assert {name.partition(".")[0] for name in list_clauses(view)} == {"accumulation"}
    view.run("document.querySelector('[data-slug=paddle] .open').click()")
    assert [slug for slug in list_columns(view) if slug.startswith("paddle-")] == [
        "paddle-dygraph-forced-scaler",
        "paddle-dygraph",
        "paddle-static",
    ]
    view.wait("location.hash === '#?open=paddle'")


def test_filters_show_matching_rows_and_columns(view: Browser, folder: Path) -> None:
    view.choose("outcome", "known")
    frameworks = ("jax", "paddle", "tf", "torch")
    assert [slug.partition("-")[0] for slug in list_columns(view)] == list(frameworks), (
        "the reference has no known failure"
    )
    assert list_clauses(view) == set.union(*map(known_clauses, frameworks))
    view.choose("run", "any paddle run")
    assert list_clauses(view) == known_clauses("paddle")
    assert list_columns(view)[0] == "paddle"
    assert all(slug.startswith("paddle") for slug in list_columns(view))
    view.choose("family", "scaling")
    view.wait("location.hash === '#?outcome=known&run=paddle&family=scaling'")
    narrow = list_clauses(view)
    assert narrow == {name for name in known_clauses("paddle") if name.startswith("scaling.")}
    view.open(folder / "baselines.html", "#?family=no-such-family&outcome=known&run=paddle&family=scaling")
    assert list_clauses(view) == known_clauses("paddle")
    view.run("document.querySelector('#filters [type=reset]').click()")
    view.wait("location.hash === ''")
    assert len(list_columns(view)) == 5
    for address, text in view.run("return [...document.querySelectorAll('.lead a')].map((a) => [a.hash, a.text])"):
        view.run("document.querySelector(`.lead a[href='${arguments[0]}']`).click()", address)
        view.wait("location.hash === arguments[0]".replace("arguments[0]", f"'{address}'"))
        assert len(list_clauses(view)) == int(text.split()[0]), address


def test_search_shows_clauses_of_matching_tests(view: Browser) -> None:
    test = "test_float32_sgd_parity[digits-mlp]"
    view.driver.find_element("id", "search").send_keys(f"{test} grad")
    view.wait("!document.getElementById('filters').ariaBusy && !document.querySelector('#filters[aria-busy]')")
    named = {v.clause for record in baselines() for v in record.verdicts if test in v.test}
    assert list_clauses(view)
    assert list_clauses(view) <= named
    view.wait("location.hash.startsWith('#?search=test_float32')")


def test_cell_opens_its_tests_at_an_address(view: Browser, folder: Path) -> None:
    record = baselines()[-1]
    verdict = next(v for v in record.verdicts if v.outcome is Outcome.KNOWN and v.checks and "://" in v.link)
    view.choose("outcome", "known")
    view.run(
        "document.getElementById(`clause-${arguments[0]}`).lastElementChild.firstElementChild.click()", verdict.clause
    )
    text = read_dialog(view)
    parts = (verdict.clause, "known", verdict.reason, verdict.repro, "source", "seed 0", verdict.checks[0].what)
    for part in (*parts, f"finding {verdict.finding}"):
        assert " ".join(part.split()) in text
    assert view.run("return location.hash") == f"#{verdict.clause}@torch-eager?outcome=known"
    assert view.run("return document.getElementById('cell').contains(document.activeElement)")
    view.run("document.querySelector('#cell form button').click()")
    view.wait("location.hash === '#?outcome=known'")
    assert view.run("return document.activeElement.closest('tr').id") == f"clause-{verdict.clause}"
    view.open(folder / "baselines.html", "#accumulation.equals-full-batch@paddle")
    assert "3 runs of paddle" in read_dialog(view)
    unfold = "[...document.querySelectorAll('#cell details')].forEach((fold) => { fold.open = true; })"
    text = "document.getElementById('cell').innerText.includes('ensemble of randomly rounded reference runs')"
    view.wait(f"{unfold} || {text}")
    view.open(folder / "baselines.html", "#no.such-clause@torch-eager")
    assert not view.run("return document.getElementById('cell').open")
    view.run("document.querySelector('#findings a[href^=\"#clause-\"]').click()")
    view.wait("document.querySelector('.clause:target').checkVisibility()")


def test_curves_of_every_trace_are_drawn(view: Browser) -> None:
    for name in ("losses", "scales"):
        counts = view.run(
            """
            const select = document.getElementById(`${arguments[0]}-choice`);
            return [...select.options].slice(0, 8).map((option) => {
              select.value = option.value;
              select.dispatchEvent(new Event("change", {bubbles: true}));
              const lines = [...document.querySelectorAll(`#${arguments[0]}-chart path`)];
              return [option.textContent, lines.filter((line) => /^M.*[LHV]/.test(line.getAttribute("d"))).length];
            });
            """,
            name,
        )
        for text, count in counts:
            runs = int(text.rpartition("(")[2].split()[0])
            assert runs <= count <= runs + 1, text
    view.run("document.getElementById('losses-distance').click()")
    assert view.run("return document.querySelector('#losses-chart .oracle').getAttribute('d')")
    titles = view.run("return [...document.querySelectorAll('#losses-chart title')].map((title) => title.textContent)")
    assert titles[0] == "oracle"
    assert any(title.startswith("torch 2.13.0") for title in titles)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_has_no_serious_violation_of_axe(chromium: Browser, tmp_path: Path, scheme: str) -> None:
    outcomes = {f"s.x{i}": outcome for i, outcome in enumerate(Outcome)}
    report.write([record("torch", outcomes), record("torch", outcomes), record("tf", outcomes)], tmp_path / "page.html")
    chromium.resize(1280)
    chromium.prefer(scheme)
    chromium.open(tmp_path / "page.html", "#?open=torch&level=MUST")
    chromium.run("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert chromium.violations() == []
    chromium.run("document.querySelector('.clause .cell').click()")
    read_dialog(chromium)
    assert chromium.violations("#cell") == []


def test_page_of_hostile_records_runs_no_script(chromium: Browser, folder: Path) -> None:
    chromium.resize(1280)
    chromium.prefer("light")
    chromium.open(folder / "infected.html")
    opened = chromium.driver.execute_async_script(
        """
        const done = arguments[0];
        (async () => {
          const pause = () => new Promise((go) => setTimeout(go, 0));
          const open = () => { for (const fold of document.querySelectorAll("#cell details")) fold.open = true; };
          let opened = 0;
          for (const cell of document.querySelectorAll(".matrix .cell")) {
            cell.click();
            while (!document.getElementById("cell").open) await pause();
            open();
            await pause();
            open();
            await pause();
            opened += document.querySelectorAll("#cell .test").length;
            document.getElementById("cell").close();
            while (location.hash.includes("@")) await pause();
          }
          for (const select of document.querySelectorAll("select")) {
            for (const option of select.options) {
              select.value = option.value;
              for (const kind of ["input", "change"]) select.dispatchEvent(new Event(kind, {bubbles: true}));
            }
          }
          document.getElementById("losses-distance").click();
          setTimeout(() => done(opened), 500);
        })();
        """
    )
    assert opened >= len(Outcome) * (len(HOSTILE) + 1)
    assert chromium.run("return typeof window.canary") == "undefined"
    assert chromium.run("return document.querySelectorAll('iframe, img, base, object, embed').length") == 0
    assert chromium.run("return ({}).canary === undefined && Object.prototype.hasOwnProperty('canary') === false")
    assert chromium.console() == []
    assert chromium.requests() == []
