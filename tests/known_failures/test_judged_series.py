"""In a series that nobody has judged yet the expectations of the nearest judged one apply, and are marked."""

import re
from pathlib import Path

import pytest
from packaging.version import Version

from conformance.checks.outcome import explain
from conformance.checks.outcome import judge as decide
from conformance.known_failures.judged_series import Judged, Place, Relevance, Versions
from conformance.known_failures.reading import known_of
from frameworks.reference import ReferenceFramework
from results.record.outcomes import Outcome
from results.record.reading import load
from tests.support.suite_runs import checkout, judge

TORCH = ("2.6.0", "2.13.0", "2.15.0")
KERAS = ("2.20.0+keras.3.11.3", "2.21.0+keras.3.15.1")


@pytest.mark.parametrize(
    ("judged", "version", "nearest"),
    [
        (TORCH, "2.13.0", ""),
        (TORCH, "2.13.0+cpu", ""),
        (TORCH, "2.13.0.dev20260101", "2.6.0"),
        (TORCH, "2.13.1+cpu", "2.13.0"),
        (TORCH, "2.16.0+cu132", "2.15.0"),
        (TORCH, "2.2.0", "2.6.0"),
        (TORCH, "2.14.1", "2.13.0"),
        (KERAS, "2.21.0+keras.3.15.1", ""),
        (KERAS, "2.21.0+keras.3.13.2", "2.21.0+keras.3.15.1"),
        (KERAS, "2.21.0+keras.3.16.0", "2.21.0+keras.3.15.1"),
        (KERAS, "2.22.0+keras.3.15.1", "2.21.0+keras.3.15.1"),
        (KERAS, "2.19.1+keras.3.8.0", "2.20.0+keras.3.11.3"),
        (("0.10.2",), "0.10.2+flax.0.12.8.optax.0.2.8.jmp.0.0.4", ""),
        (("0.10.2",), "0.9.2+flax.0.12.6.optax.0.2.8.jmp.0.0.4", "0.10.2"),
        ((), "1.0", ""),
    ],
)
def test_versions_nearest_is_the_closest_judged(judged: tuple[str, ...], version: str, nearest: str) -> None:
    place = Versions(Version(version), judged)
    assert place.confirmed is (nearest == "")
    assert place.confirmed or place.nearest == nearest


@pytest.mark.parametrize(
    ("version", "versions", "bearing"),
    [
        ("2.13.0+cpu", "==2.13.0", Relevance()),
        ("2.13.0+cpu", "==2.15.0", None),
        ("2.16.0", ">=2.6.0,<=2.15.0", Relevance("2.15.0")),
        ("2.16.0", "==2.13.0", None),
        ("2.16.0", "==2.16.0", Relevance("2.15.0")),
        ("2.2.0", "==2.6.0", Relevance("2.6.0")),
        ("2.14.1", ">=2.6.0,<=2.15.0", Relevance("2.13.0")),
        ("2.14.1", "==2.13.0", Relevance("2.13.0", settled=False)),
        ("2.14.1", "==2.15.0", Relevance("2.15.0", settled=False)),
        ("2.14.1", "==2.6.0", None),
    ],
)
def test_versions_bearing_of_an_entry(version: str, versions: str, bearing: Relevance | None) -> None:
    assert Versions(Version(version), TORCH).bearing(versions) == bearing


SERIES: Judged = {
    ("cpu", "eager"): ("2.6.0", "2.13.0"),
    ("cpu", "compile"): ("2.13.0",),
    ("cpu", "ddp"): ("2.13.0",),
    ("cuda", "eager"): ("2.11.0",),
    ("xpu", "compile"): ("2.14.0",),
}


@pytest.mark.parametrize(
    ("version", "device", "mode", "nearest"),
    [
        ("2.13.0+cpu", "cpu", "eager", ""),
        ("2.13.0", "cuda", "eager", "2.11.0"),
        ("2.12.0", "cpu", "eager", "2.6.0"),
        ("2.13.0", "cuda", "compile", "2.13.0 cpu compile"),
        ("2.14.0", "cuda", "compile", "2.14.0 xpu compile"),
        ("2.14.1", "cuda", "compile", "2.13.0 cpu compile"),
        ("2.11.0", "xpu", "eager", "2.11.0 cuda eager"),
        ("2.13.0", "xpu", "eager", "2.13.0 cpu eager"),
        ("2.13.0", "cpu", "fsdp", "2.13.0 cpu eager"),
        ("2.11.0", "cuda", "fsdp", "2.11.0 cuda eager"),
        ("2.14.0", "xpu", "fsdp", "2.14.0 xpu compile"),
        ("2.14.0", "tpu", "fsdp", "2.14.0 xpu compile"),
        ("2.15.0", "tpu", "fsdp", "2.13.0 cpu eager"),
    ],
)
def test_place_nearest_is_the_closest_judged(version: str, device: str, mode: str, nearest: str) -> None:
    place = Place(Version(version), device, mode, SERIES)
    assert place.confirmed is (nearest == "")
    assert place.confirmed or place.nearest == nearest


@pytest.mark.parametrize(
    ("where", "entry", "bearing"),
    [
        (("2.13.0", "cpu", "eager"), ("==2.13.0", "cpu", "*"), Relevance()),
        (("2.13.0", "cpu", "eager"), ("==2.13.0", "cuda", "*"), None),
        (("2.13.0", "cuda", "eager"), (">=2.6.0", "cpu", "*"), None),
        (("2.13.0", "cuda", "eager"), ("==2.11.0", "cuda", "*"), Relevance("2.11.0")),
        (("2.13.0", "cuda", "ddp"), ("==2.13.0", "cpu", "ddp"), Relevance("2.13.0 cpu ddp", settled=False)),
        (("2.13.0", "cuda", "ddp"), ("==2.6.0", "cpu", "ddp"), None),
        (("2.13.0", "cuda", "ddp"), ("==2.13.0", "cpu", "eager"), None),
        (("2.13.0", "cuda", "ddp"), ("==2.11.0", "cuda", "*"), Relevance("2.11.0 cuda eager", settled=False)),
        (("2.13.0", "cuda", "ddp"), ("==2.11.0", "cuda", "eager"), None),
        (("2.13.0", "cpu", "fsdp"), ("==2.13.0", "*", "eager"), Relevance("2.13.0 cpu eager", settled=False)),
        (("2.13.0", "cpu", "fsdp"), ("==2.13.0", "*", "compile"), None),
        (("2.13.0", "cpu", "fsdp"), ("==2.13.0", "cpu", "fsdp"), Relevance("2.13.0 cpu eager", settled=False)),
    ],
)
def test_place_bearing_of_an_entry(
    where: tuple[str, str, str], entry: tuple[str, str, str], bearing: Relevance | None
) -> None:
    version, device, mode = where
    assert Place(Version(version), device, mode, SERIES).bearing(*entry) == bearing


JUDGED = '[judged]\ncpu.emulated = ["1", "2"]\n'
FINDING = """
[[finding]]
id = "f"
class = "documented"
consequence = "error"
reason = "It does."
link = "none found"
"""


class Twin(ReferenceFramework):
    """A reference of a chosen version."""

    name = "reference"
    chosen = "1"

    def version(self) -> str:
        return self.chosen


@pytest.fixture
def expecting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of an adapter that a test writes, next to a program of the finding and a module."""
    (tmp_path / "findings").mkdir()
    for name in ("findings/f.py", "trainer.py"):
        (tmp_path / name).touch()
    monkeypatch.setattr("conformance.known_failures.reading._built_in", lambda _: [tmp_path])
    monkeypatch.setattr("conformance.known_failures.reading.files", lambda _: tmp_path)
    return tmp_path / "expectations.toml"


def entry(versions: str, signature: str = "differs", more: str = "") -> str:
    """An entry of the finding."""
    return (
        f'[[expectation]]\nfinding = "f"\nclause = "scaling.automaton"\nversions = "{versions}"\n'
        f'signature = "{signature}"\n{more}\n'
    )


def applying(version: str, seed: int = 0) -> list[tuple[str, str, bool]]:
    """Signature, origin and leniency of what applies to a version."""
    twin = Twin("cpu")
    twin.chosen = version
    return [(each.signature, each.inferred_from, each.may_pass) for each in known_of(twin, seed).expectations]


def test_known_of_an_unjudged_version_is_inferred(expecting: Path) -> None:
    entries = entry(">=1,<=2", "a") + entry("==2", "b")
    expecting.write_text(FINDING + entries, encoding="utf-8")
    assert applying("1.0") == [("a", "", False)]
    assert applying("3.0") == []
    expecting.write_text(JUDGED + FINDING + entries, encoding="utf-8")
    assert applying("1.0") == [("a", "", False)]
    assert applying("2.0+cpu") == [("a", "", False), ("b", "", False)]
    assert applying("3.0") == [("a", "2", False), ("b", "2", False)]
    assert applying("1.5") == [("a", "1", False), ("b", "2", True)]


def test_known_of_an_unjudged_mode_has_exclusions_and_workarounds_of_the_nearest(expecting: Path) -> None:
    exclusion = '[[exclusion]]\nfinding = "f"\nversions = "==1"\ndevice = "cuda"\nmode = "{0}"\nwhen = ["clip"]\n'
    workaround = '[[workaround]]\nfinding = "f"\nkind = "call"\nmodule = "trainer.py"\ndoes = "It."\nmode = "{0}"\n'
    entries = "".join((exclusion + workaround).format(mode) for mode in ("eager", "graph"))
    expecting.write_text('[judged]\ncuda.eager = ["1"]\n' + FINDING + entries, encoding="utf-8")
    known = known_of(Twin("cpu"))
    assert [each.mode for each in (*known.exclusions, *known.workarounds)] == ["eager", "eager"]


def test_known_of_a_workaround_without_a_mode_is_of_the_default_mode_alone(expecting: Path) -> None:
    workaround = '[[workaround]]\nfinding = "f"\nkind = "call"\nmodule = "trainer.py"\ndoes = "It."\n'
    plain = entry("==1").replace("scaling.automaton", "composition.plain-way")
    expecting.write_text(FINDING + workaround + plain, encoding="utf-8")
    for mode, count in (("emulated", 1), ("ranks", 0)):
        known = known_of(Twin("cpu", mode))
        assert (len(known.workarounds), len(known.expectations)) == (count, count)


@pytest.mark.parametrize(
    ("depends_on", "at_0", "at_3"),
    [
        ("seed", [("differs", "", False)], [("differs", "", True)]),
        ("other-seeds", [], [("differs", "", True)]),
        ("kernels", [("differs", "", True)], [("differs", "", True)]),
    ],
)
def test_known_of_an_entry_that_depends_on_seeds_or_kernels_may_pass(
    expecting: Path, depends_on: str, at_0: list[tuple[str, str, bool]], at_3: list[tuple[str, str, bool]]
) -> None:
    expecting.write_text(FINDING + entry("==1", more=f'depends_on = "{depends_on}"'), encoding="utf-8")
    assert (applying("1", 0), applying("1", 3)) == (at_0, at_3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[judged]", "judged is empty; remove it if no series was judged"),
        (
            'judged = ["1"]',
            "judged is ['1'], not versions by device and mode; write a table [judged] with lines such as",
        ),
        ('[judged]\ncpu = ["1"]', "judged.cpu names no mode; write cpu.MODE = ['1']"),
        ("[judged]\ncpu.eager = []", "judged: cpu.eager is empty; remove it if no version was judged"),
        ('[judged]\ncpu.eager = ["new"]', "judged: cpu.eager is ['new'], not a list of PEP 440 versions"),
        ('[judged]\ncpu.eager = "1.0"', "judged: cpu.eager: got '1.0', want an array of non-empty strings"),
        (
            FINDING + entry("==1", more='depends_on = "moon"'),
            "depends_on: got 'moon', want 'seed', 'other-seeds' or 'kernels'",
        ),
    ],
)
def test_known_of_a_wrong_file_is_refused(expecting: Path, text: str, message: str) -> None:
    expecting.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(message)):
        applying("1")


def test_judge_of_an_inferred_entry_may_pass(expecting: Path) -> None:
    expecting.write_text(JUDGED + FINDING + entry("==2"), encoding="utf-8")
    twin = Twin("cpu")
    twin.chosen = "1.5"
    (lenient,) = known_of(twin).expectations
    assert decide(False, "", [lenient]) == ("pass", None)
    assert decide(True, "differs", [lenient]) == ("known", lenient)
    assert decide(True, "otherwise", [lenient]) == ("fail", lenient)


SUITE = """
from conformance.checks.api import Subject, Verdict, clause

@clause("scaling.automaton")
def test_it_fails(subject: Subject, verdict: Verdict) -> None:
    verdict.equal(1, 2, "numbers")

@clause("scaling.automaton")
def test_it_passes(subject: Subject, verdict: Verdict) -> None:
    verdict.equal(1, 1, "numbers")
"""


def test_run_of_an_unjudged_version_marks_inferred_failures_and_ends_in_0(tmp_path: Path) -> None:
    root = checkout(tmp_path, some=SUITE)
    path = root / "frameworks" / "reference" / "expectations.toml"
    fails, gone = (entry("==0.9", more=f'cases = ["{case}"]') for case in ("test_it_fails", "test_gone"))
    gone = gone.replace("scaling.automaton", "scaling.stays-positive")
    path.write_text('[judged]\ncpu.emulated = ["0.9"]\n' + FINDING + fails + gone, encoding="utf-8")
    ended = judge("-rx", f"--record={tmp_path / 'r.json'}", "--junitxml", str(tmp_path / "junit.xml"), root=root)
    verdicts = {verdict.case: verdict for verdict in load(tmp_path / "r.json").verdicts}
    failed = verdicts["test_it_fails"]
    assert (failed.outcome, failed.inferred_from, failed.finding) == (Outcome.KNOWN, "0.9", "f")
    assert "not confirmed here" in failed.message
    assert "differs: It does. (not confirmed here, expected as in 0.9)" in " ".join(ended.output.split())
    assert (
        "reference 1 on cpu in mode emulated has not been judged yet: 1 known failures are expected as in 0.9, not "
        "confirmed here; 1 of its expectations matched no test"
    ) in ended.output
    assert 'name="inferred_from" value="0.9"' in (tmp_path / "junit.xml").read_text("utf-8")
    assert (ended.status, verdicts["test_it_passes"].inferred_from) == (0, "")


def test_explain_of_a_repair_in_an_unjudged_version_names_the_judged_one(expecting: Path) -> None:
    expecting.write_text(JUDGED + FINDING + entry(">=1,<=2"), encoding="utf-8")
    twin = Twin("cpu")
    twin.chosen = "3"
    (inferred,) = known_of(twin).expectations
    assert decide(False, "", [inferred]) == ("fixed", inferred)
    assert "did not occur, unlike in 2" in explain("fixed", "", inferred)
