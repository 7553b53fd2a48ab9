"""Where the time of runs went: by family, by test, and on the command line."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from conformance.cli import main
from results.record.reading import ClauseText, Outcome, Record, Series, TestVerdict, Variant, write
from results.show import times
from tests.support.small_record import BASE


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


def test_a_record_without_tests_has_no_slowest_one() -> None:
    assert not any("Slowest" in line for line in drawn(run()))


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


def test_the_slowest_are_listed_by_test_or_by_clause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record.json"
    write(path, run(scaling_a=0.5, scaling_b=0.75, resume_a=1.0))
    assert main(["slowest", str(path), "--count", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Slowest tests of some 1.0 eager cpu:",
        "     1.00  resume.slug/resume_a",
        "     0.75  scaling.slug/scaling_b",
    ]
    assert main(["slowest", str(path), "--by", "clause"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Slowest clauses of some 1.0 eager cpu:",
        "     1.25  scaling.slug",
        "     1.00  resume.slug",
    ]


@pytest.mark.parametrize("arguments", [["--count", "0"], ["--by", "family"], ["there-is-no-such-record.json"]])
def test_what_cannot_be_listed_ends_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slowest", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("conformance: ")


def test_the_command_tells_them_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record.json"
    write(path, run(scaling_a=0.5))
    assert main(["table", str(path)]) == 0
    assert "Slowest" not in capsys.readouterr().out
    assert main(["table", "--times", str(path)]) == 0
    assert "0.50  scaling.slug/scaling_a" in capsys.readouterr().out
