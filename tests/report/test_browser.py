"""The report in a browser: columns in sight, filters, addresses, cells, curves; hostile records run nothing."""

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
def shown(chromium: Browser, folder: Path) -> Iterator[Browser]:
    """The baselines' report, newly opened; a message on the console or a request fails the test that caused it."""
    chromium.resize(1280)
    chromium.prefer("light")
    chromium.open(folder / "baselines.html")
    yield chromium
    assert chromium.console() == []
    assert chromium.requests() == []


def heads(browser: Browser) -> list[str]:
    """The slugs of the columns in sight; every row has their cells alone."""
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


def clauses(browser: Browser) -> set[str]:
    shown = "[...document.querySelectorAll('.clause')].filter((row) => row.checkVisibility())"
    return set(browser.run(f"return {shown}.map((row) => row.querySelector('code').textContent)"))


def dialog(browser: Browser) -> str:
    browser.wait("document.getElementById('cell').open")
    return " ".join(browser.run("return document.getElementById('cell').innerText").split())


def failing(framework: str) -> set[str]:
    records = [one for one in baselines() if one.series.framework == framework]
    return {v.clause for one in records for v in one.verdicts if v.outcome is Outcome.KNOWN}


@pytest.mark.parametrize("width", [390, 1280])
def test_page_at_first_shows_a_column_for_each_framework(shown: Browser, width: int) -> None:
    shown.resize(width)
    assert [slug.partition("-")[0] for slug in heads(shown)] == ["jax", "paddle", "reference", "tf", "torch"]
    right = "[...document.querySelectorAll('.matrix tr:not([hidden]) > *')].map((c) => c.getBoundingClientRect().right)"
    assert shown.run(f"return Math.max(...{right})") <= width
    shown.run("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert shown.run("return document.documentElement.scrollWidth") <= width
    assert clauses(shown) == set()
    shown.run("document.querySelector('.family .open').click()")
    assert {name.partition(".")[0] for name in clauses(shown)} == {"accumulation"}
    shown.run("document.querySelector('[data-slug=paddle] .open').click()")
    assert [slug for slug in heads(shown) if slug.startswith("paddle-")] == [
        "paddle-dygraph-forced-scaler",
        "paddle-dygraph",
        "paddle-static",
    ]
    shown.wait("location.hash === '#?open=paddle'")


def test_filters_show_matching_rows_and_columns(shown: Browser, folder: Path) -> None:
    shown.choose("outcome", "known")
    frameworks = ("jax", "paddle", "tf", "torch")
    assert [slug.partition("-")[0] for slug in heads(shown)] == list(frameworks), "the reference has no known failure"
    assert clauses(shown) == set.union(*map(failing, frameworks))
    shown.choose("run", "any paddle run")
    assert clauses(shown) == failing("paddle")
    assert heads(shown)[0] == "paddle"
    assert all(slug.startswith("paddle") for slug in heads(shown))
    shown.choose("family", "scaling")
    shown.wait("location.hash === '#?outcome=known&run=paddle&family=scaling'")
    narrow = clauses(shown)
    assert narrow == {name for name in failing("paddle") if name.startswith("scaling.")}
    shown.open(folder / "baselines.html", "#?family=no-such-family&outcome=known&run=paddle&family=scaling")
    assert clauses(shown) == failing("paddle"), "a value that the page lacks is passed over"
    shown.run("document.querySelector('#filters [type=reset]').click()")
    shown.wait("location.hash === ''")
    assert len(heads(shown)) == 5
    for address, text in shown.run("return [...document.querySelectorAll('.lead a')].map((a) => [a.hash, a.text])"):
        shown.run("document.querySelector(`.lead a[href='${arguments[0]}']`).click()", address)
        shown.wait("location.hash === arguments[0]".replace("arguments[0]", f"'{address}'"))
        assert len(clauses(shown)) == int(text.split()[0]), address


def test_search_shows_clauses_of_matching_tests(shown: Browser) -> None:
    text = "test_float32_sgd_parity[digits-mlp] grad"
    shown.driver.find_element("id", "search").send_keys(text)
    shown.wait("!document.getElementById('filters').ariaBusy && !document.querySelector('#filters[aria-busy]')")
    named = {v.clause for one in baselines() for v in one.verdicts if "test_float32_sgd_parity[digits-mlp]" in v.test}
    assert clauses(shown)
    assert clauses(shown) <= named
    shown.wait("location.hash.startsWith('#?search=test_float32')")


def test_cell_opens_its_tests_at_an_address(shown: Browser, folder: Path) -> None:
    one = baselines()[-1]
    verdict = next(v for v in one.verdicts if v.outcome is Outcome.KNOWN and v.checks and "://" in v.link)
    shown.choose("outcome", "known")
    shown.run(
        "document.getElementById(`clause-${arguments[0]}`).lastElementChild.firstElementChild.click()", verdict.clause
    )
    text = dialog(shown)
    parts = (verdict.clause, "known", verdict.reason, verdict.repro, "source", "seed 0", verdict.checks[0].what)
    for part in (*parts, f"finding {verdict.finding}"):
        assert " ".join(part.split()) in text
    assert shown.run("return location.hash") == f"#{verdict.clause}@torch-eager?outcome=known"
    assert shown.run("return document.getElementById('cell').contains(document.activeElement)")
    shown.run("document.querySelector('#cell form button').click()")
    shown.wait("location.hash === '#?outcome=known'")
    assert shown.run("return document.activeElement.closest('tr').id") == f"clause-{verdict.clause}"
    shown.open(folder / "baselines.html", "#accumulation.equals-full-batch@paddle")
    assert "3 runs of paddle" in dialog(shown)
    unfold = "[...document.querySelectorAll('#cell details')].forEach((fold) => { fold.open = true; })"
    text = "document.getElementById('cell').innerText.includes('ensemble of randomly rounded reference runs')"
    shown.wait(f"{unfold} || {text}")
    shown.open(folder / "baselines.html", "#no.such-clause@torch-eager")
    assert not shown.run("return document.getElementById('cell').open")
    shown.run("document.querySelector('#findings a[href^=\"#clause-\"]').click()")
    shown.wait("document.querySelector('.clause:target').checkVisibility()")


def test_curves_of_every_trace_are_drawn(shown: Browser) -> None:
    for name in ("losses", "scales"):
        counts = shown.run(
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
    shown.run("document.getElementById('losses-distance').click()")
    assert shown.run("return document.querySelector('#losses-chart .oracle').getAttribute('d')")
    titles = shown.run("return [...document.querySelectorAll('#losses-chart title')].map((title) => title.textContent)")
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
    dialog(chromium)
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
