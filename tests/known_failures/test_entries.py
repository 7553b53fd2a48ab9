"""Expectations are read strictly, meet the runs that they mean, and are refuted by what they do not foresee."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.checks.outcome import explain, judge, unmatched
from conformance.known_failures.entries import Expectation, Known
from conformance.known_failures.judged_series import VersionSeries
from conformance.known_failures.reading import FILE, load_known, read_known
from conformance.spec.clauses import load_clauses
from conformance.spec.findings import Finding
from frameworks.registry import built_in
from results.record.texts import Consequence, FindingKind, FindingText

CLAUSES = ("scaling.stays-positive", "recompute.statistics-once")

FINDING = """
[[finding]]
id = "scale-zero"
class = "defect"
consequence = "silent-corruption"
reason = "The scale reaches zero."
link = "https://example.org/1"
link_shows = "That it does."
"""
GOOD = """
[[expectation]]
finding = "scale-zero"
clause = "scaling.stays-positive"
versions = ">=2.4,<3"
device = "cpu"
mode = "eager"
cases = ["overflows-400"]
signature = "not-finite"
"""
AROUND = """
[[workaround]]
finding = "scale-zero"
kind = "call"
module = "trainer.py"
does = "It stops before zero."
"""
LEFT_OUT = """
[[exclusion]]
finding = "scale-zero"
versions = ">=2.4,<3"
when = ["clip"]
"""

TEXT = FindingText(
    FindingKind.DEFECT,
    Consequence.SILENT_CORRUPTION,
    "The scale reaches zero.",
    "https://example.org/1",
    "That it does.",
)
ENTRY = Expectation(
    clause="scaling.stays-positive",
    framework="torch",
    versions=">=2.4,<3",
    device="cpu",
    mode="eager",
    cases=("overflows-400",),
    signature="not-finite",
    finding=Finding("scale-zero", "torch", TEXT),
    file="torch/expectations.toml",
)


def known(folder: Path, text: str, program: str | None = "") -> Known:
    """What a file of this text says, beside the program of its finding unless that is None."""
    (folder / "torch" / "findings").mkdir(parents=True, exist_ok=True)
    (folder / "torch" / "trainer.py").write_text("", encoding="utf-8")
    if program is not None:
        (folder / "torch" / "findings" / "scale_zero.py").write_text(program, encoding="utf-8")
    (folder / "torch" / FILE).write_text(text, encoding="utf-8")
    return read_known(folder / "torch", "torch", CLAUSES)


def read(folder: Path, text: str) -> tuple[Expectation, ...]:
    """The expectations that rest on `FINDING`, their program left out of the comparison."""
    entries = known(folder, FINDING + text).expectations
    return tuple(replace(entry, finding=replace(entry.finding, program=None)) for entry in entries)


def test_an_entry_is_read_as_it_stands(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD) == (ENTRY,)
    short = re.sub(r"(?m)^(device|mode|cases) = .*\n", "", GOOD)
    assert read(tmp_path, short) == (replace(ENTRY, device="*", mode="*", cases=()),)
    assert read(tmp_path, f"{GOOD}spoils_process = true\n") == (replace(ENTRY, spoils_process=True),)


def test_a_file_of_comments_or_no_file_holds_nothing(tmp_path: Path) -> None:
    assert known(tmp_path, "# nothing yet\n") == read_known(tmp_path / "none", "torch") == Known()


def test_a_workaround_is_read_with_its_finding_and_program(tmp_path: Path) -> None:
    (around,) = known(tmp_path, FINDING + AROUND).workarounds
    assert (around.kind, around.module, around.mode) == ("call", "trainer.py", "")
    assert around.finding.program is not None
    assert around.finding.program.name == "scale_zero.py"


def test_read_known_of_a_documented_finding_needs_a_program_or_an_expectation(tmp_path: Path) -> None:
    documented = FINDING.replace('"defect"', '"documented"')
    (finding,) = known(tmp_path, documented + GOOD, program=None).findings
    assert finding.program is None
    assert known(tmp_path / "with", documented + LEFT_OUT).exclusions
    with pytest.raises(ValueError, match="finding 'scale-zero' needs a program or an expectation"):
        known(tmp_path / "without", documented + LEFT_OUT, program=None)


def test_the_committed_files_can_be_read() -> None:
    clauses, loaded = load_clauses(), load_known()
    for entry in loaded.expectations:
        assert entry.clause in clauses
        assert entry.framework in built_in()
    assert {finding.framework for finding in loaded.findings} == built_in().keys() - {"reference"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("device", "devcie", "expectation 1 (scaling.stays-positive): unknown key 'devcie'"),
        ("scaling.stays-positive", "scaling.stays-put", "unknown clause 'scaling.stays-put'"),
        (">=2.4,<3", "2.x", "versions: got '2.x', want a PEP 440 specifier"),
        (">=2.4,<3", "", "versions is empty"),
        ('reason = "The scale reaches zero."', "", "reason is missing"),
        ('reason = "The scale reaches zero."', 'reason = ""', "reason is empty"),
        ('link = "https://example.org/1"', "", "link is missing"),
        ("https://example.org/1", "somewhere", "link: got 'somewhere', want an address or 'none found'"),
        ("https://example.org/1", "none found", "link_shows needs a link that is an address"),
        ('link_shows = "That it does."', "", "link_shows needs a link that is an address"),
        ('"defect"', '"bug"', "class: got 'bug', want one of defect, documented, numerics, limitation"),
        ('"defect"', '"defect"\nprocessor = "AVX-512"', "processor 'AVX-512' is not a list such as"),
        ('"defect"', '"defect"\ndevice = "gpu"', "device: got 'gpu', want 'cpu' or 'cuda'"),
        ('"defect"', '"numerics"', "the consequence of the class numerics is last-bits, not silent-corruption"),
        ('"defect"', '"limitation"', "the consequence of the class limitation is error, not silent-corruption"),
        ('"silent-corruption"', '"bad"', "consequence: got 'bad', want one of silent-corruption, silent-loss"),
        ('id = "scale-zero"', 'id = "Scale zero"', "finding 1 (Scale zero): the id is not a slug"),
        ('id = "scale-zero"', 'id = "scale-one"', "a defect needs a program that shows it, findings/scale_one.py"),
        ('finding = "scale-zero"', 'finding = "scale-one"', "unknown finding 'scale-one'"),
        (FINDING, FINDING + FINDING, "finding 2 (scale-zero): duplicate id"),
        (GOOD, "", "no expectation, workaround or exclusion names the finding 'scale-zero'"),
        (GOOD, GOOD + AROUND.replace('"call"', '"trick"'), "kind: got 'trick', want one of call, check, state"),
        (GOOD, GOOD + AROUND.replace("trainer.py", "none.py"), "no module 'none.py'"),
        ('signature = "not-finite"', "", "signature is missing"),
        ("not-finite", "it was 3.25, not 4", "want letters, digits"),
        ('["overflows-400"]', '"overflows-400"', "want an array of non-empty strings"),
        ('["overflows-400"]', '["a", "a"]', "has a duplicate"),
        ('device = "cpu"', "spoils_process = 1", "spoils_process: got 1, want true or false"),
        ("[[expectation]]", "[[expect]]", "expectations.toml: unknown key 'expect'"),
        ("[[expectation]]", "[[expectation", "expectations.toml: not TOML"),
        (GOOD, LEFT_OUT.replace('["clip"]', "[]"), "when is empty"),
        (GOOD, LEFT_OUT.replace(">=2.4,<3", "one"), "want a PEP 440 specifier"),
        (GOOD, LEFT_OUT.replace("scale-zero", "other"), "unknown finding 'other'"),
        (GOOD, GOOD + GOOD, "expectation 2 (scaling.stays-positive): another entry has the same"),
    ],
)
def test_a_wrong_entry_is_refused_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = FINDING + GOOD
    assert old in text
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        known(tmp_path, text.replace(old, new))
    assert str(caught.value).startswith("torch/expectations.toml: ")
    assert "\n" not in str(caught.value)


def applies(
    entry: Expectation,
    framework: str = "torch",
    version: str = "2.13.0",
    device: str = "cpu",
    mode: str = "eager",
    instructions: tuple[str, ...] = (),
) -> bool:
    """Whether an entry applies to a run where the adapter does not say what was judged."""
    known = Known(expectations=(entry,)).applying(framework, VersionSeries(version, device, mode), 0, instructions)
    return known.expectations == (entry,)


@pytest.mark.parametrize(
    ("versions", "version", "meant"),
    [
        (">=2.4,<3", "2.13.0+cpu", True),
        ("==2.13.0", "2.13.0+cpu", True),
        ("==2.13.*", "2.13.0+cu130", True),
        ("<=2.13.0", "2.13.0+cpu", True),
        (">2.13.0", "2.13.0+cpu", False),
        ("!=2.13.0", "2.13.0+cpu", False),
        ("==2.13.0+cpu", "2.13.0+cpu", True),
        ("==2.13.0+cpu", "2.13.0+cu130", False),
        (">=2.13", "2.14.0.dev20260701+cpu", True),
        ("<2.13", "2.13.0", False),
        (">=2.4,<3", "3.0", False),
    ],
)
def test_applying_compares_versions_by_pep_440(versions: str, version: str, meant: bool) -> None:
    assert applies(replace(ENTRY, versions=versions), version=version) is meant


def test_applying_compares_framework_device_and_mode_exactly() -> None:
    assert applies(ENTRY)
    assert not applies(ENTRY, framework="tf")
    assert not applies(ENTRY, device="cuda")
    assert not applies(ENTRY, mode="compile")
    assert applies(replace(ENTRY, device="*", mode="*"), device="cuda", mode="compile")
    assert applies(replace(ENTRY, device="cuda, cpu"))


@pytest.mark.parametrize(
    ("processor", "instructions", "meant"),
    [
        ("*", (), True),
        ("avx2", ("avx", "avx2"), True),
        ("avx2", ("avx", "avx512f"), False),
        ("avx2, -avx512f", ("avx2",), True),
        ("avx2, -avx512f", ("avx2", "avx512f"), False),
        ("avx2, -avx512f", (), False),
        ("-avx512f", ("asimd",), True),
    ],
)
def test_applying_compares_instruction_sets(processor: str, instructions: tuple[str, ...], meant: bool) -> None:
    of_finding = replace(ENTRY, finding=replace(ENTRY.finding, processor=processor))
    for entry in (replace(ENTRY, processor=processor), of_finding):
        assert applies(entry, instructions=instructions) is meant


def test_a_version_that_cannot_be_compared_is_an_error() -> None:
    with pytest.raises(ValueError, match="torch: version 'nightly build' is not a PEP 440 version"):
        applies(ENTRY, version="nightly build")


def test_covers_is_exact() -> None:
    assert ENTRY.covers("scaling.stays-positive", "overflows-400")
    assert not ENTRY.covers("scaling.stays-positive", "overflows-4000")
    assert not ENTRY.covers("scaling.stays-positive", "")
    assert not ENTRY.covers("scaling.stays-finite", "overflows-400")
    assert replace(ENTRY, cases=()).covers("scaling.stays-positive", "whatever")


OTHER = replace(ENTRY, signature="raises")


@pytest.mark.parametrize(
    ("failed", "signature", "matching", "verdict"),
    [
        (True, "not-finite", (), ("fail", None)),
        (True, "not-finite", (ENTRY,), ("known", ENTRY)),
        (True, "not-finite", (OTHER, ENTRY), ("known", ENTRY)),
        (True, "differs", (ENTRY,), ("fail", ENTRY)),
        (True, "", (ENTRY,), ("fail", ENTRY)),
        (False, "", (ENTRY,), ("fixed", ENTRY)),
        (False, "", (), ("pass", None)),
    ],
)
def test_judge_of_a_result_and_its_entries(
    failed: bool, signature: str, matching: tuple[Expectation, ...], verdict: tuple[str, Expectation | None]
) -> None:
    assert judge(failed, signature, matching) == verdict


def test_explain_names_signature_reason_or_remedy() -> None:
    verdict, entry = judge(True, "differs", [ENTRY])
    for text in ("signature differs", "'differs'", "'not-finite'"):
        assert text in explain(verdict, "differs", entry)
    assert "The scale reaches zero." in explain("known", "not-finite", ENTRY)
    assert "https://example.org/1" in explain("known", "not-finite", ENTRY)
    assert "torch/expectations.toml" in explain("fixed", "", ENTRY)
    assert explain("fail", "differs", None) == explain("pass", "", None) == ""


def test_unmatched_are_entries_and_cases_without_a_test() -> None:
    whole, two = replace(ENTRY, cases=()), replace(ENTRY, cases=("overflows-400", "overflows-170"))
    assert unmatched([ENTRY, whole], [("scaling.stays-finite", "overflows-400")]) == (ENTRY, whole)
    assert unmatched([ENTRY, whole], [("scaling.stays-positive", "overflows-400")]) == ()
    assert unmatched([whole], [("scaling.stays-positive", "")]) == ()
    assert unmatched([ENTRY], [("scaling.stays-positive", "overflows-40")]) == (ENTRY,)
    assert unmatched([two], [("scaling.stays-positive", "overflows-400")]) == (replace(two, cases=("overflows-170",)),)
