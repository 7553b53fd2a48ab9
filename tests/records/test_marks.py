"""What is shown of records and comparisons: listed, grouped, counted, and without a link or an effect on a terminal."""

import json
import math
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from conformance.cli import main
from results.compare.changes import Change, ChangeKind
from results.compare.comparison import compare
from results.compare.pairing import compare_sets
from results.record.reading import ClauseText, Outcome, Record, Series, TestVerdict, Variant, write
from results.show import times
from results.show.differences import document, draw, grouped, headline, markdown, to_json, to_text
from results.show.digest import markdown as digest
from results.show.marks import html, words
from tests.support.small_record import BASE, CLAUSE, measured, verdict

REFERENCES = (
    *("https://example.org/x", "HTTP://example.org", "ftp://example.org", "www.example.org", "mailto:a@example.org"),
    *(
        "#1",
        "owner/name#23",
        "GH-1",
        "gh-77",
        "@name",
        "owner/name@a1b2c3d",
        "a1b2c3d",
        "deadbeef" * 5,
        "0123456789abcdef",
    ),
)
LINKED = re.compile(
    r"(?i)(?:https?|ftp|mailto|xmpp):[^\s\u200b]|www\.|@\w|#\d|\bGH-\d|(?<![`>])\b(?=[0-9]*[a-f])[0-9a-f]{7,40}\b"
)


@pytest.mark.parametrize("text", REFERENCES)
def test_nothing_in_a_text_becomes_a_link(text: str) -> None:
    assert LINKED.search(text), "it is one that would"
    for result in (words(text), html(text)):
        assert not LINKED.search(result.replace("\\", ""))
        assert re.sub(r"[\u200b\\`]|</?code>", "", result) == text


@pytest.mark.parametrize("text", ["1048576 bytes", "0.0001234567", "#a heading", "a www b", "3 of 12345678"])
def test_numbers_stay_as_they_are(text: str) -> None:
    assert "\u200b" not in words(text)


def test_a_comparison_as_json_has_no_raw_control_characters() -> None:
    text = "\x1b[2J \x7f \x9b31m \u202e ü"
    content = to_json(compare_sets([BASE], [verdict(BASE, 0, outcome=Outcome.FAIL, message=text)]))
    assert content.replace("\n", "").isprintable()
    assert json.loads(content)["pairs"][0]["changes"][0]["detail"].startswith(text)


def test_a_brief_table_leaves_out_what_is_not_worse() -> None:
    old = verdict(BASE, 0, outcome=Outcome.FAIL)
    result = compare_sets([old], [verdict(verdict(BASE, 0), 2, outcome=Outcome.FAIL)])
    console = Console(width=100, record=True, file=StringIO())
    draw(result, console, brief=True)
    brief, whole = console.export_text(), to_text(result)
    assert ("test_a" in whole, "test_a" in brief) == (True, False)
    assert ("test_b[2]" in whole, "test_b[2]" in brief) == (True, True)


def test_changes_that_are_alike_are_told_together() -> None:
    new = verdict(verdict(BASE, 1, outcome=Outcome.FAIL), 2, outcome=Outcome.FAIL)
    (group,) = grouped(compare(BASE, new).changes)
    assert group.subjects == "test_b[1], test_b[2]"


def test_many_changes_that_are_alike_are_counted() -> None:
    changes = [Change(ChangeKind.NEWLY_FAILING, CLAUSE, f"{CLAUSE}/test_c[{i}]", "pass", "fail") for i in range(6)]
    (group,) = grouped(changes)
    assert group.subjects == "test_c[0], test_c[1], test_c[2], test_c[3] and 2 more"


def test_the_forms_say_the_same() -> None:
    new = verdict(BASE, 0, outcome=Outcome.FAIL, message="a | <b>@you</b> `c`", link="javascript:alert(1)")
    result = compare_sets([BASE], [replace(new, variant=Variant("2.14.0", {"numpy": "2.4"}))])
    for text in (to_text(result), markdown(result)):
        assert "2.13.0 → 2.14.0" in text
        assert "1 newly failing" in text
        assert "numpy: 2.3 → 2.4" in text
        assert "test_a" in text
    assert "<b>" not in markdown(result)
    assert "@you" not in markdown(result)
    assert "](javascript" not in markdown(result)
    parsed = json.loads(json.dumps(document(result), allow_nan=False))
    assert (parsed["status"], parsed["pairs"][0]["changes"][0]["worse"]) == (1, True)


def test_the_headline_says_why_tests_are_not_comparable() -> None:
    result = compare(BASE, verdict(BASE, 0, setup_hash="d"))
    assert "1 not comparable" in headline(result)
    assert "1: different training setups" in to_text(compare_sets([BASE], [result.new]))
    uncounted = compare(BASE, measured({"bytes/test_a": (math.nan,)}))
    assert "1 not comparable" in headline(uncounted)


def run(**durations: float) -> Record:
    """A record of one test a keyword, FAMILY_NAME, that took so many seconds."""
    families = {name.partition("_")[0] for name in durations}
    clauses = {f"{family}.slug": ClauseText("MUST", "…", "", (), family) for family in families}
    verdicts = tuple(
        TestVerdict(f"{clause}/{name}", clause, Outcome.PASS, duration_s=spent)
        for name, spent in durations.items()
        for clause in [f"{name.partition('_')[0]}.slug"]
    )
    changes = {"clauses": clauses, "verdicts": verdicts, "observations": (), "measurements": ()}
    return replace(BASE, series=Series("some", "cpu", "", "eager"), variant=Variant("1.0"), **changes).sorted()


def drawn(*records: Record, width: int = 80) -> list[str]:
    console = Console(file=StringIO(), width=width, color_system=None)
    times.draw(records, console)
    assert isinstance(console.file, StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_seconds_add_up_by_family() -> None:
    assert times.seconds(run(scaling_a=0.5, scaling_b=0.25, resume_a=2.0)) == {"scaling": 0.75, "resume": 2.0}
    lines = drawn(run(scaling_a=0.5, scaling_b=0.25), run(resume_a=2.0))
    assert [line for line in lines if line.startswith(("resume", "scaling", "total"))] == [
        "resume – 2.00",
        "scaling 0.75 –",
        "total 0.75 2.00",
    ]


def test_the_slowest_tests_come_first_and_no_more_than_ten() -> None:
    result = times.slowest(run(**{f"scaling_{n}": float(n % 7) for n in range(12)}))
    assert [verdict.duration_s for verdict in result] == [6.0, 5.0, 4.0, 4.0, 3.0, 3.0, 2.0, 2.0, 1.0, 1.0]
    lines = drawn(run(scaling_quick=0.1, scaling_slow=3.0))
    begin = lines.index("Slowest tests of some 1.0 eager cpu:")
    assert lines[begin + 1 : begin + 3] == ["3.00 scaling.slug/scaling_slow", "0.10 scaling.slug/scaling_quick"]


def test_a_hostile_name_or_time_stays_on_its_line() -> None:
    record = run(scaling_a=1e300)
    (verdict,) = record.verdicts
    lines = drawn(replace(record, verdicts=(replace(verdict, test="a\x1b[31m\nb[bold]"),)))
    assert "1.0e+300 a [31m b[bold]" in lines


def test_a_page_has_what_took_longest_first_and_all_sums() -> None:
    runs = run(scaling_a=0.5, scaling_b=0.25, resume_a=2.0), run(scaling_a=3.0)
    assert times.by_clause(runs[0]) == {"scaling.slug": 0.75, "resume.slug": 2.0}
    assert times.markdown(runs, times.by_clause, most=1).splitlines() == [
        "| seconds | some eager | some eager |",
        "|---|--:|--:|",
        "| scaling.slug | 0.75 | 3.00 |",
        "| all tests | 2.75 | 3.00 |",
        "| the whole run | 1.00 | 1.00 |",
    ]
    assert "| resume | 2.00 | – |" in times.markdown(runs, times.seconds)


def test_the_command_tells_them_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record.json"
    write(path, run(scaling_a=0.5))
    assert main(["table", str(path)]) == 0
    assert "Slowest" not in capsys.readouterr().out
    assert main(["table", "--times", str(path)]) == 0
    assert "0.50  scaling.slug/scaling_a" in capsys.readouterr().out


def test_a_record_in_a_comment_links_to_nothing() -> None:
    text = " ".join(REFERENCES)
    comment = digest([verdict(BASE, 0, outcome=Outcome.FAIL, message=text)])
    without_code = re.sub(r"`[^`]*`", "", comment).replace("\\", "")
    assert "example" in without_code
    assert not LINKED.search(without_code)
