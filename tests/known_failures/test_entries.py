"""Findings and snapshots are read strictly, apply to the runs that they mean, and are refuted by what they do not
say."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.checks.outcome import explain, judge, unmatched
from conformance.known_failures.reading import (
    FILE,
    SNAPSHOTS,
    Expectation,
    Known,
    VersionSeries,
    explain_repair,
    load_known,
    read_known,
)
from conformance.spec.clauses import load_clauses
from conformance.spec.findings import Finding
from frameworks.registry import built_in
from results.record.texts import Consequence, FindingKind, FindingText

CLAUSES = ("scaling.stays-positive", "recompute.statistics-once")
NAME = "torch-2.13.0-cpu-eager.txt"
FINDING = """
[[finding]]
id = "scale-zero"
class = "defect"
consequence = "silent-corruption"
reason = "The scale reaches zero."
link = "https://example.org/1"
link_shows = "That it does."
"""
AROUND = """
[finding.workaround]
kind = "call"
module = "trainer.py"
does = "It stops before zero."
"""
LEFT_OUT = """
[[finding.exclusion]]
versions = ">=2.4,<3"
when = ["clip"]
"""
LINE = "scaling.stays-positive/overflows 400  scale-zero  not-finite|differs  [avx2, -avx512f, seed]"

TEXT = FindingText(
    FindingKind.DEFECT,
    Consequence.SILENT_CORRUPTION,
    "The scale reaches zero.",
    "https://example.org/1",
    "That it does.",
)
ENTRY = Expectation(
    clause="scaling.stays-positive",
    cases=("overflows 400",),
    signature="not-finite|differs",
    finding=Finding("scale-zero", "torch", TEXT),
    series=VersionSeries("2.13.0", "cpu", "eager"),
    file=f"torch/{SNAPSHOTS}/{NAME}",
)


def known(folder: Path, findings: str = FINDING, lines: str = LINE, name: str = NAME) -> Known:
    """The content of files of these texts, beside the program of the finding."""
    for inner in ("findings", SNAPSHOTS):
        (folder / "torch" / inner).mkdir(parents=True, exist_ok=True)
    for path in ("trainer.py", "findings/scale_zero.py"):
        (folder / "torch" / path).touch()
    (folder / "torch" / FILE).write_text(findings, encoding="utf-8")
    (folder / "torch" / SNAPSHOTS / name).write_text(lines, encoding="utf-8")
    return read_known(folder / "torch", "torch", CLAUSES)


def test_read_known_of_a_line_is_the_entry_that_it_says(tmp_path: Path) -> None:
    (entry,) = known(tmp_path).expectations
    assert (entry.line, entry.file) == (LINE, ENTRY.file)
    plain = replace(entry, finding=ENTRY.finding)
    assert plain == replace(ENTRY, processor="avx2, -avx512f", depends_on="seed")
    assert replace(ENTRY, processor="*").line == LINE.partition("  [")[0]


def test_read_known_of_comments_or_of_no_files_is_nothing(tmp_path: Path) -> None:
    assert read_known(tmp_path / "none", "torch") == Known()
    assert known(tmp_path, "# nothing yet\n", "").judged == {"torch": (VersionSeries("2.13.0", "cpu", "eager"),)}


def test_read_known_of_a_workaround_and_an_exclusion_has_their_finding(tmp_path: Path) -> None:
    content = known(tmp_path, FINDING.replace('"defect"', '"defect"\ndevice = "cuda"') + AROUND + LEFT_OUT)
    (around,), (left_out,) = content.workarounds, content.exclusions
    assert (around.kind, around.module, around.mode) == ("call", "trainer.py", "")
    assert around.finding == left_out.finding == content.findings[0]
    assert (left_out.versions, left_out.device, left_out.when) == (">=2.4,<3", "cuda", ("clip",))


def test_load_known_of_the_committed_files_has_no_idle_finding_and_sorted_snapshots() -> None:
    loaded = load_known()
    assert {entry.clause for entry in loaded.expectations} <= load_clauses().keys()
    assert {finding.framework for finding in loaded.findings} == built_in().keys() - {"reference"}
    failing = {entry.finding for entry in loaded.expectations}
    named = {one.finding for one in (*loaded.workarounds, *loaded.exclusions)}
    assert all(finding in failing | named or finding.causes for finding in loaded.findings)
    assert all(finding in failing or finding.program for finding in loaded.findings)
    sets = {finding.id: set(re.findall(r"\w+", finding.processor)) for finding in loaded.findings}
    assert [one.id for one in loaded.findings if sets[one.id] - set(re.findall(r"\w+", one.text.reason))] == []
    lines: dict[str, list[str]] = {}
    for entry in loaded.expectations:
        lines.setdefault(entry.file, []).append(entry.line)
    assert all(entries == sorted(entries) for entries in lines.values())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('reason = "The scale reaches zero."', "", "reason is missing"),
        ("https://example.org/1", "somewhere", "link: got 'somewhere', want an address or 'none found'"),
        ("https://example.org/1", "none found", "link_shows needs a link that is an address"),
        ('"defect"', '"bug"', "class: got 'bug', want one of defect, documented, numerics, limitation"),
        ('"defect"', '"defect"\nprocessor = "AVX-512"', "processor 'AVX-512' is not a list such as"),
        ('"defect"', '"defect"\ndevice = "gpu"', "device: got 'gpu', want 'cpu' or 'cuda'"),
        ('"defect"', '"defect"\nspoils_process = 1', "spoils_process: got 1, want true or false"),
        ('"defect"', '"defect"\nclauses = ["a.b"]', "finding scale-zero: unknown clause 'a.b'"),
        ('"defect"', '"numerics"', "the consequence of the class numerics is last-bits, not silent-corruption"),
        ('"silent-corruption"', '"bad"', "consequence: got 'bad', want one of silent-corruption, silent-loss"),
        ('id = "scale-zero"', 'id = "Scale zero"', "finding 1 (Scale zero): the id is not a slug"),
        ('id = "scale-zero"', 'id = "scale-one"', "a defect needs a program that shows it, findings/scale_one.py"),
        (FINDING, FINDING + FINDING, "finding 2 (scale-zero): duplicate id"),
        ('"call"', '"trick"', "workaround: kind: got 'trick', want one of call, check, state"),
        ("trainer.py", "none.py", "no module 'none.py'"),
        ("[finding.workaround]", "[[finding.workaround]]", "want a table"),
        ("[[finding]]", "[[found]]", "findings.toml: unknown key 'found'"),
        ("[[finding]]", "[[finding", "findings.toml: not TOML"),
        ('["clip"]', "[]", "exclusion 1: when is empty"),
        (">=2.4,<3", "one", "versions: got 'one', want a PEP 440 specifier"),
    ],
)
def test_read_known_of_a_wrong_finding_is_refused_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = FINDING + AROUND + LEFT_OUT
    assert old in text
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        known(tmp_path, text.replace(old, new))
    assert str(caught.value).startswith(f"torch/{FILE}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("scaling.stays-positive scale-zero differs", "line 1: got 'scaling.stays-positive scale-zero differs', want "),
        (LINE.replace("not-finite", "it was 3.25"), "want 'TEST  FINDING  SIGNATURE' or"),
        (LINE.replace("scaling.stays-positive", "scaling.stays-put"), "line 1: unknown clause 'scaling.stays-put'"),
        (LINE.replace("scale-zero", "other"), "line 1: unknown finding 'other'; add it to findings.toml"),
        (LINE.replace("avx2", "AVX-2"), "got [AVX-2, -avx512f, seed], want instruction sets such as"),
        (LINE.replace("seed", "seed, kernels"), "and at most one of seed, other-seeds, kernels"),
        (f"{LINE}\n{LINE}\n", "line 2: another line has the same test and finding"),
    ],
)
def test_read_known_of_a_wrong_line_is_refused_in_one_line(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        known(tmp_path, lines=lines)
    assert str(caught.value).startswith(f"torch/{SNAPSHOTS}/{NAME}: line ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("notes.txt", "torch/expected: got a file 'notes.txt', want FRAMEWORK-VERSION-DEVICE-MODE.txt"),
        ("torch-2.x-cpu-eager.txt", "torch: version '2.x' is not a PEP 440 version"),
    ],
)
def test_read_known_of_a_snapshot_with_a_wrong_name_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        known(tmp_path, name=name)


@pytest.mark.parametrize(
    ("processor", "instructions", "meant"),
    [
        ("avx2", ("avx", "avx512f"), False),
        ("avx2, -avx512f", ("avx2",), True),
        ("avx2, -avx512f", ("avx2", "avx512f"), False),
        ("avx2, -avx512f", (), False),
        ("-avx512f", ("asimd",), True),
    ],
)
def test_applying_compares_instruction_sets(processor: str, instructions: tuple[str, ...], meant: bool) -> None:
    entry = replace(ENTRY, processor=processor)
    content = Known(expectations=(entry,), judged={"torch": (entry.series,)})
    assert content.applying("torch", entry.series, 0, instructions).expectations == ((entry,) if meant else ())


def test_applying_of_a_version_that_cannot_be_compared_is_an_error() -> None:
    with pytest.raises(ValueError, match="torch: version 'nightly build' is not a PEP 440 version"):
        Known().applying("torch", VersionSeries("nightly build", "cpu", "eager"))


OTHER = replace(ENTRY, signature="raises")
UNSETTLED = replace(ENTRY, may_pass=True)


@pytest.mark.parametrize(
    ("failed", "signature", "matching", "verdict"),
    [
        (True, "not-finite", (), ("fail", None)),
        (True, "not-finite", (ENTRY,), ("known", ENTRY)),
        (True, "differs", (OTHER, ENTRY), ("known", ENTRY)),
        (True, "raises", (ENTRY,), ("fail", ENTRY)),
        (False, "", (ENTRY,), ("fixed", ENTRY)),
        (False, "", (UNSETTLED,), ("pass", None)),
        (True, "differs", (UNSETTLED,), ("known", UNSETTLED)),
        (False, "", (), ("pass", None)),
    ],
)
def test_judge_of_a_result_and_its_entries(
    failed: bool, signature: str, matching: tuple[Expectation, ...], verdict: tuple[str, Expectation | None]
) -> None:
    assert judge(failed, signature, matching) == verdict


def test_explain_names_signature_reason_or_remedy() -> None:
    verdict, entry = judge(True, "raises", [ENTRY])
    assert "signature differs: got 'raises', want 'not-finite|differs'" in explain(verdict, "raises", entry)
    assert "The scale reaches zero. (https://example.org/1)" in explain("known", "not-finite", ENTRY)
    inferred = replace(ENTRY, inferred_from="2.12.0")
    assert f"did not occur; remove its line from {ENTRY.file}" in explain_repair([UNSETTLED, ENTRY])
    assert "did not occur, unlike in 2.12.0; " in explain_repair([inferred])


def test_unmatched_are_entries_without_a_test() -> None:
    assert unmatched([ENTRY], [("scaling.stays-positive", "overflows 400")]) == ()
    assert unmatched([ENTRY], [("scaling.stays-positive", "overflows 40")]) == (ENTRY,)
    assert unmatched([ENTRY], [("scaling.stays-finite", "overflows 400")]) == (ENTRY,)
