"""Tests of fingerprints, on a package of a few functions in two versions."""

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from conformance.fingerprints import run
from conformance.fingerprints.cases import read_signature
from conformance.fingerprints.values import describe
from results.compare.fingerprints import (
    SUFFIX,
    Difference,
    FingerprintComparison,
    compare_fingerprints,
    explain_outcomes,
    find_disagreements,
    load,
    to_text,
)
from results.history.versions import find_releases, load_releases, write_releases
from results.record.files import RecordError, compress_content, replace

FILE = """
distribution = "numpy"
namespaces = ["toy_package"]

[arguments]
values = ["x"]

[[kinds]]
name = "average"
base = "toy_package.Average"
program = \"\"\"
average = CALL
for k in range(3): average.add(k + 1.0)
result = average.value
\"\"\"
[[kinds.variants]]
name = "twice"
is_same = true
replace = [["for k", "for k in range(3): average.add(9.0)\\naverage.reset()\\nfor k"]]

[[kinds]]
name = "function"
names = ".*"
program = \"\"\"
import numpy
x = numpy.linspace(-1, 1, 5)
result = CALL
\"\"\"
"""

OLD = '''
import numpy

class Average:
    """An average.

    Args:
        kind: one of "mean" or "sum".
    """

    def __init__(self, decay=0.5, kind="mean"):
        self.decay, self.kind, self.value = decay, kind, 0.0

    def add(self, number):
        self.value = self.decay * self.value + (1 - self.decay) * number * (2 if self.kind == "sum" else 1)

    def reset(self):
        self.value = 0.0

def fork(values):
    return values

def scale(values, factor=2.0, *, clip=None):
    return values * factor if clip is None else numpy.clip(values * factor, -clip, clip)

def gone(values):
    return values

def draw(values):
    import os
    return os.urandom(4)

def end(values):
    import os
    os._exit(3)

def total(values):
    return values.astype("float32").sum()
'''

NEW = (
    OLD.replace("decay=0.5", "decay=0.25")
    .replace("self.value = 0.0\n\ndef", "pass\n\ndef")
    .replace("if clip is None else", "if clip is None else 1 / 0 +")
    .replace("def gone", "def added")
    .replace("return values.astype", "return 1.0000001 * values.astype")
)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> FingerprintComparison:
    """The comparison of the two versions, each run in processes of its own, written and read."""
    sides = []
    for version, code in (("1.0", OLD), ("2.0", NEW)):
        folder = tmp_path_factory.mktemp("toy")
        (folder / "toy_package.py").write_text(code, "utf-8")
        (folder / "numpy.toml").write_text(FILE, "utf-8")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(folder))
            sides.append(run.run_package(folder / "numpy.toml", version))
    return compare_fingerprints(*sides)


def _find(comparison: FingerprintComparison, difference: Difference) -> dict[str, str]:
    names = {change.name.removeprefix("toy_package."): change.step for change in comparison.list_changes(difference)}
    assert len(names) == len(comparison.list_changes(difference))
    return names


def test_compare_fingerprints_of_two_versions_names_each_kind_of_change(comparison: FingerprintComparison) -> None:
    assert _find(comparison, Difference.BROKEN) == {"scale": "ZeroDivisionError"}
    assert _find(comparison, Difference.DEFAULT) == {"Average": "decay=0.5 -> 0.25"}
    assert _find(comparison, Difference.OTHERWISE) == {"Average": "float size 2.125 -> 2.6719"}
    assert _find(comparison, Difference.REMOVED) == {"gone": ""}
    assert _find(comparison, Difference.NEW) == {"added": ""}
    assert comparison.exit_status == 1


def test_compare_fingerprints_with_last_digits_moved_is_silent(comparison: FingerprintComparison) -> None:
    assert all(change.name != "toy_package.total" for change in comparison.changes)
    assert comparison.identical + comparison.rounding > 0


def test_run_package_drops_calls_that_differ_between_processes(comparison: FingerprintComparison) -> None:
    assert comparison.old.callables["toy_package.draw"].cases == {}


def test_run_package_goes_on_after_a_crash(comparison: FingerprintComparison) -> None:
    (outcome,) = comparison.old.callables["toy_package.end"].cases.values()
    assert comparison.old.outcome(outcome) == ("!crash", "")
    assert comparison.old.callables["toy_package.fork"].cases.keys() == {"values=x"}


def test_run_package_calls_with_documented_and_boundary_options(comparison: FingerprintComparison) -> None:
    cases = comparison.old.callables["toy_package.Average"].cases
    assert {"", "kind='sum'", "decay=0", "decay=1", "decay=0.25", "decay=0.5", " # twice"} <= cases.keys()


def test_program_of_a_change_shows_it_without_the_suite(comparison: FingerprintComparison, tmp_path: Path) -> None:
    (change,) = comparison.list_changes(Difference.BROKEN)
    (tmp_path / "toy_package.py").write_text(NEW, "utf-8")
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(ZeroDivisionError):
            exec(change.program, {})
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("toy_package", None)


def test_to_text_begins_with_what_is_broken(comparison: FingerprintComparison) -> None:
    lines = to_text([comparison]).splitlines()
    assert lines[0].startswith("numpy 1.0 -> 2.0: ")
    assert lines[1] == "  raises now (1): toy_package.scale (ZeroDivisionError)"


def test_run_package_of_a_kind_calls_only_what_must_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy_package.py").write_text(OLD, "utf-8")
    (tmp_path / "numpy.toml").write_text(FILE, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    fingerprint = run.run_package(tmp_path / "numpy.toml", "1.0", "average")
    assert {name: [*entry.cases] for name, entry in fingerprint.callables.items()} == {
        "toy_package.Average": ["", "decay=0.5", "kind='mean'", " # twice"]
    }


def test_find_disagreements_names_an_object_that_keeps_state(comparison: FingerprintComparison) -> None:
    assert find_disagreements(comparison.old)[1] == []
    count, failures = find_disagreements(comparison.new)
    assert count > len(failures)
    assert {(name, variant) for name, _, variant, _ in failures} == {("toy_package.Average", "twice")}


def test_load_of_another_document_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "numpy-1.0.fingerprint.gz"
    replace(path, b"{}")
    with pytest.raises(RecordError, match="not compressed"):
        load(path)


@pytest.mark.parametrize(
    ("form", "change", "found"),
    [
        ("float32", 1e-6, "rounding"),
        ("float32", 1e-3, "changed"),
        ("float16", 1e-3, "rounding"),
        ("float16", 1e-2, "changed"),
        ("int32", 1.0, "changed"),
    ],
)
def test_explain_outcomes_classifies_by_the_format(form: str, change: float, found: str) -> None:
    values = np.linspace(1, 90, 64).astype(form)
    moved = (values * (1 + change)).astype(form) if form != "int32" else values + 1
    result = explain_outcomes(describe({"x": values}), describe({"x": moved}))
    assert (result if isinstance(result, str) else "changed") == found


@pytest.mark.parametrize(
    ("old", "new"), [(np.ones(2), np.ones(3)), ({"a": 1.0}, {"b": 1.0}), (np.ones(1), np.full(1, np.nan))]
)
def test_explain_outcomes_of_other_structures_is_a_change(old: object, new: object) -> None:
    result = explain_outcomes(describe(old), describe(new))
    assert isinstance(result, tuple)
    assert result[0] is Difference.OTHERWISE


def test_describe_of_a_permutation_has_other_numbers() -> None:
    values = np.linspace(0, 1, 8)
    result = explain_outcomes(describe(values), describe(values[::-1]))
    assert isinstance(result, tuple)
    assert "weighted mean" in result[1]


def test_read_signature_of_a_builtin_takes_its_documentation() -> None:
    class Builtin:
        """gelu(input, approximate='none') -> Tensor"""

        __signature__ = "none"

        def __call__(self) -> None: ...

    text, parameters = read_signature(Builtin())
    assert text == "(input, approximate='none')"
    assert [parameter.is_required for parameter in parameters] == [True, False]


def test_find_releases_compares_neighbours_and_can_be_read_again(
    comparison: FingerprintComparison, tmp_path: Path
) -> None:
    for fingerprint, version in ((comparison.old, "1.0"), (comparison.new, "1.10"), (comparison.old, "1.9")):
        path = tmp_path / "cell" / f"numpy-{version}{SUFFIX}"
        path.parent.mkdir(exist_ok=True)
        named = msgspec.structs.replace(fingerprint, version=version)
        replace(path, compress_content(path, msgspec.json.encode(named)))
    releases = find_releases([tmp_path])
    assert [(release.old, release.new) for release in releases] == [("1.0", "1.9"), ("1.9", "1.10")]
    assert [*releases[0].changes] == []
    assert releases[1].changes[Difference.BROKEN] == {"toy_package.scale": "ZeroDivisionError"}
    assert "  raises now (1): toy_package.scale (ZeroDivisionError)" in releases[1].lines()
    for name, content in write_releases(releases).items():
        replace(tmp_path / name, content)
    assert load_releases(tmp_path) == releases
