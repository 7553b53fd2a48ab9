"""The report in a browser: how it behaves, and that hostile records run nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from results.record.reading import Outcome
from results.report import matrix
from tests.support.recorded import by_name
from tests.support.reporting import HOSTILE, baselines
from tools.browser import Browser, in_browser, visible_clauses

ELEMENTS = 60_000
"""Most elements of the page of the baselines."""


@in_browser
def test_tests_are_unpacked_once_and_only_when_asked_for(shown: Browser, pages: Path) -> None:
    counting = (
        "globalThis.unpacked = 0;"
        "globalThis.DecompressionStream = class extends DecompressionStream {"
        " constructor(...all) { super(...all); unpacked += 1; } }"
    )
    with shown.beforehand(counting):
        shown.open(pages / "baselines.html")
    assert shown.all_charts() == 4
    assert shown.run("return document.getElementsByTagName('*').length") < ELEMENTS
    assert shown.run("return unpacked") == 0
    shown.open_cell(".matrix .w-known")
    shown.press("\ue00c")
    shown.driver.find_element("id", "search").send_keys("norm clip")
    shown.open_cell(".matrix .w-pass")
    assert shown.run("return unpacked") == 1


@in_browser
def test_a_browser_that_cannot_unpack_says_so(shown: Browser, pages: Path) -> None:
    with shown.beforehand("delete globalThis.DecompressionStream"):
        shown.open(pages / "baselines.html")
    assert shown.run("return document.getElementById('too-old').checkVisibility()")
    shown.open_cell(".matrix .w-known")
    assert "no DecompressionStream" in shown.run("return document.getElementById('cell').innerText")
    shown.press("\ue00c")
    shown.run("document.querySelector('#matrix .json').click()")
    assert shown.run("return document.getElementById('cell').open")
    shown.press("\ue00c")
    shown.driver.find_element("id", "search").send_keys("automaton")
    assert "scaling.automaton" in visible_clauses(shown)
    assert shown.all_charts() == 4
    shown.open(pages / "baselines.html")
    assert not shown.run("return document.getElementById('too-old').checkVisibility()")


@in_browser
def test_a_number_of_the_summary_leads_to_its_clauses(shown: Browser) -> None:
    links = shown.run("return [...document.querySelectorAll('header a')].map((a) => [a.getAttribute('href'), a.text])")
    assert len(links) > 4
    for address, text in links:
        shown.run("document.querySelector(`header a[href='${arguments[0]}']`).click()", address)
        shown.wait(f"location.hash === '{address}'")
        assert len(visible_clauses(shown)) == int(text.split()[0]), address
    shown.driver.find_element("css selector", "#filters [type=reset]").click()


@in_browser
def test_scripts_leave_no_globals(shown: Browser) -> None:
    shown.all_charts()
    own = shown.run(
        "const frame = document.createElement('iframe'); document.body.append(frame);"
        "const plain = Object.keys(frame.contentWindow); frame.remove();"
        "return Object.keys(window).filter((k) => !plain.includes(k) && !/^(cdc_|ret_nodes|\\$)/.test(k))"
    )
    assert own in ([], ["0"]), own


@in_browser
def test_search_and_filters_narrow_the_matrix(shown: Browser) -> None:
    every = visible_clauses(shown)
    assert shown_columns(shown)[0] == len(baselines())
    assert len(every) == len({name for one in baselines() for name in one.clauses})
    shown.driver.find_element("id", "search").send_keys("norm clip")
    shown.wait("!document.getElementById('filters').ariaBusy")
    assert visible_clauses(shown) == [name for name in every if name in visible_clauses(shown)] != every
    assert all("clip" in texts(name) and "norm" in texts(name) for name in visible_clauses(shown))
    shown.driver.find_element("css selector", "#filters [type=reset]").click()
    shown.wait("document.getElementById('found').textContent.startsWith('126')" if len(every) == 126 else "true")

    shown.choose("family", "scaling")
    assert visible_clauses(shown) == [name for name in every if name.startswith("scaling.")]
    shown.choose("level", "OBSERVATION")
    assert all(name.startswith("scaling.") for name in visible_clauses(shown))
    shown.choose("family", "all")
    shown.choose("level", "all")

    shown.choose("outcome", "known")
    known = {v.clause for one in baselines() for v in one.verdicts if v.outcome is Outcome.KNOWN}
    assert set(visible_clauses(shown)) == known
    shown.choose("run", shown.run("return document.querySelector('#run option:last-child').textContent"))
    assert set(visible_clauses(shown)) == {v.clause for v in baselines()[-1].verdicts if v.outcome is Outcome.KNOWN}
    assert shown_columns(shown) == (1, [1])
    shown.driver.find_element("css selector", "#filters [type=reset]").click()
    shown.driver.find_element("id", "lonely").click()
    assert set(visible_clauses(shown)) == {one.row.name for one in matrix.alone(matrix.families(baselines()))}
    result = shown.run("return document.getElementById('found').textContent")
    assert result.startswith(f"{len(visible_clauses(shown))} of")


def shown_columns(browser: Browser) -> tuple[int, list[int]]:
    """How many runs the matrix shows, and how many below each framework; a row of it has as many cells."""
    heads, spans, cells = browser.run(
        """
        const shown = (list) => [...list].filter((each) => !each.hidden);
        const { rows } = document.querySelector(".matrix").tHead;
        const spans = shown(rows[0].cells).slice(2).map((head) => head.colSpan);
        return [shown(rows[1].cells).length, spans, shown(document.querySelector(".matrix .clause").cells).length - 2];
        """
    )
    assert heads == cells == sum(spans)
    return heads, spans


@in_browser
def test_a_phone_shows_results(shown: Browser) -> None:
    shown.resize(390)
    try:
        left = shown.run("return document.querySelector('.matrix .clause').cells[2].getBoundingClientRect().left")
    finally:
        shown.resize(1280)
    assert left < 200


def texts(clause: str) -> str:
    """What the search looks through."""
    text = next(one.clauses[clause] for one in baselines() if clause in one.clauses)
    tests = [verdict.test for one in baselines() for verdict in one.verdicts if verdict.clause == clause]
    return " ".join([clause, text.requirement, text.source, *tests]).lower()


@in_browser
def test_a_cell_opens_and_closes_by_keyboard(shown: Browser) -> None:
    verdict = next(v for v in baselines()[-1].verdicts if v.outcome is Outcome.KNOWN and v.checks and "://" in v.link)
    shown.run(
        "const row = document.getElementById(`clause-${arguments[0]}`);"
        "row.lastElementChild.querySelector('button').focus()",
        verdict.clause,
    )
    shown.press("\ue007")
    shown.wait("document.getElementById('cell').open")
    text = shown.run("return document.getElementById('cell').innerText")
    for part in (verdict.clause, "known", verdict.reason, verdict.repro, "source", "seed 0", verdict.checks[0].what):
        assert " ".join(part.split()) in " ".join(text.split())
    assert shown.run("return document.getElementById('cell').contains(document.activeElement)")
    for _ in range(40):
        shown.press("\ue004")
        assert shown.run(
            "const here = document.activeElement;"
            "return here === document.body || document.getElementById('cell').contains(here)"
        )
    shown.press("\ue00c")
    shown.wait("!document.getElementById('cell').open")
    assert shown.run("return document.activeElement.matches('[data-cell]')"), "the focus is back where it was"


@in_browser
def test_a_bound_is_shown_with_its_derivation(shown: Browser) -> None:
    shown.open_cell("[id='clause-accumulation.equals-full-batch'] td:last-child button")
    shown.run("for (const d of document.querySelectorAll('#cell details')) d.open = true")
    shown.wait("document.getElementById('cell').innerText.includes('ensemble of randomly rounded reference runs')")


@in_browser
def test_the_command_is_copied(shown: Browser) -> None:
    for permission in ("clipboardReadWrite", "clipboardSanitizedWrite"):
        shown.driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": [permission]})
    shown.open_cell(".matrix [data-cell]")
    shown.run("document.querySelector('#cell .test').open = true")
    shown.wait("document.querySelector('#cell .copy')")
    shown.driver.find_element("css selector", "#cell .copy").click()
    shown.wait("document.getElementById('cell-status').textContent !== ''")
    assert shown.run("return document.getElementById('cell-status').textContent") == "Copied."


@in_browser
def test_the_data_of_a_chart_can_be_read(shown: Browser) -> None:
    shown.all_charts()
    name = "test_float32_sgd_parity[encoder]"
    traces = [by_name(one.traces) for one in baselines()]
    holding = [each[f"loss/{name}"].curves for each in traces if f"loss/{name}" in each]
    shown.choose("losses-choice", f"{name} ({len(holding)} runs)")
    shown.driver.find_element("css selector", "#losses-chart summary").click()
    shown.wait("document.querySelector('#losses-chart table')")
    lines = shown.run(
        "const rows = [...document.querySelectorAll('#losses-chart tbody tr')];"
        "return rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    named = shown.run("return [...document.querySelectorAll('#losses-chart thead th')].map((cell) => cell.textContent)")
    runs = [place for place, text in enumerate(named) if not text.startswith(("update", "oracle", "spread"))]
    for step, line in enumerate(lines):
        assert int(line[0]) == step
        for one, place in zip(holding, runs, strict=True):
            assert float(line[place]) == pytest.approx(one["loss"][step], rel=1e-8)
    for identifier in ("scales", "costs", "formats"):
        shown.run(f"document.querySelector('#{identifier}-chart summary').click()")
        shown.wait(f"document.querySelectorAll('#{identifier}-chart tbody tr').length > 1")


@in_browser
def test_every_choice_of_every_chart_draws(shown: Browser) -> None:
    shown.all_charts()
    shown.run("document.querySelector('[value=distance]').click()")
    shown.wait("document.querySelector('#losses-chart .canvas').dataset.drawn === 'distance'")
    for identifier in ("scales", "costs", "formats", "losses"):
        options = f"[...document.querySelectorAll('#{identifier}-choice option')]"
        for text in shown.run(f"return {options}.map((option) => option.textContent)")[:6]:
            shown.run(f"document.querySelector('#{identifier}-chart svg').dataset.old = '1'")
            shown.choose(f"{identifier}-choice", text)
            shown.wait(f"document.querySelector('#{identifier}-chart svg:not([data-old])')")
            assert shown.run(f"return Number(document.querySelector('#{identifier}-chart .canvas').dataset.rows)") > 0


@in_browser
def test_a_mark_tells_its_value(shown: Browser) -> None:
    shown.all_charts()
    shown.point_at("#costs-chart .mark-symbol path")
    shown.wait("!document.getElementById('tip').hidden")
    names = {one.series.framework for one in baselines() if one.measurements}
    assert shown.run("return document.getElementById('tip').textContent").split()[0] in names


@in_browser
def test_it_works_where_storage_is_forbidden(chromium: Browser, pages: Path) -> None:
    frame = pages / "frame.html"
    frame.write_text(
        "<!DOCTYPE html><title>frame</title><iframe sandbox='allow-scripts' src='baselines.html'></iframe>"
    )
    chromium.prefer("light")
    chromium.open(frame)
    chromium.driver.switch_to.frame(0)
    with pytest.raises(Exception, match="sandboxed"):
        chromium.run("return localStorage.length")
    chromium.run("document.getElementById('theme').click()")
    assert chromium.run("return document.getElementById('theme').getAttribute('aria-pressed')") == "true"
    assert chromium.all_charts() == 4
    chromium.driver.switch_to.default_content()
    assert chromium.console() == []


@in_browser
def test_hostile_records_run_nothing(chromium: Browser, pages: Path) -> None:
    chromium.resize(1280)
    chromium.prefer("light")
    chromium.open(pages / "infected.html")
    assert chromium.all_charts() == 4
    opened = chromium.driver.execute_async_script(
        """
        const done = arguments[0];
        (async () => {
          const pause = () => new Promise((go) => setTimeout(go, 0));
          let opened = 0;
          for (const cell of document.querySelectorAll(".matrix [data-cell]")) {
            cell.click();
            while (!document.getElementById("cell").open) await pause();
            for (const details of document.querySelectorAll("#cell details")) details.open = true;
            await pause();
            opened += document.querySelectorAll("#cell .inside").length;
            document.getElementById("cell").close();
          }
          for (const details of document.querySelectorAll("details")) details.open = true;
          for (const select of document.querySelectorAll(".chart select, #filters select")) {
            for (const option of select.options) {
              select.value = option.value;
              for (const kind of ["input", "change"]) select.dispatchEvent(new Event(kind, {bubbles: true}));
              await pause();
            }
          }
          document.querySelector("[value=distance]").click();
          setTimeout(() => done(opened), 2000);
        })();
        """
    )
    assert opened == len(Outcome) * (len(HOSTILE) + 1)
    for chart, mark in (("costs", "symbol"), ("formats", "rect")):
        hostile = (
            f"[...document.querySelectorAll('#{chart}-choice option')].find((o) => o.textContent.includes('<img'))"
        )
        chromium.run(f"document.querySelector('#{chart}-chart svg').dataset.old = '1'")
        chromium.choose(f"{chart}-choice", chromium.run(f"return {hostile}.textContent"))
        chromium.wait(f"document.querySelector('#{chart}-chart svg:not([data-old])')")
        chromium.point_at(f"#{chart}-chart .mark-{mark} path")
        chromium.wait("document.getElementById('tip').textContent.includes('<img')")
    assert chromium.run("return typeof window.canary") == "undefined"
    assert chromium.run("return document.getElementById('tip').childElementCount") == 0
    assert chromium.run("return document.querySelectorAll('iframe, img, base, object, embed').length") == 0
    assert chromium.run("return ({}).canary === undefined && Object.prototype.hasOwnProperty('canary') === false")
    assert chromium.console() == []
    assert chromium.requests() == []
