"""Plans of sweeps: keys, cells, releases and refusals in one line; bisections of releases."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from conformance.runner.subprocesses import check_mode
from conformance.sweep import plan as plan_module
from conformance.sweep.bisection import (
    Answer,
    Boundary,
    Crossing,
    Side,
    UnstableEnd,
    bisect,
    companions_of,
    cross,
    differences,
)
from conformance.sweep.cell import requirements_of
from conformance.sweep.plan import (
    Release,
    Releases,
    SweepCell,
    SweepPlan,
    cells_of,
    check_device,
    check_release,
    choose,
    newest_at,
    next_upload,
    read_plan,
    releases,
)
from frameworks.registry import UnknownFramework
from results.record.files import RecordError
from tests.support.wheels import TOY, offline, serve_index, write_wheel

EVERY_KEY = """
name = "both"
selection = "--tests quick -k 'scaling and not laws'"
limit = "20m"
seed = 3
repeat = false

[[cells]]
framework = "tf"
package = "Keras"
framework-version = "2.21.0"
versions = ["3.14.0", "minor >=3.3", "latest 2"]
companions = [{ NumPy = "2.3.5" }, {}]
modes = ["graph", "eager"]
ways = [[], ["clip.two-calls"]]
devices = ["cpu", "cuda"]
"""
CELLS = '[[cells]]\nframework = "jax"\nversions = ["1.0"]\n'
DATES = {
    "tensorflow-cpu": {"2.16.1": "2024-03-08", "2.17.0": "2024-07-11", "2.18.0": "2024-10-24", "2.21.0": "2026-03-01"},
    "keras": {"3.3.3": "2024-04-26", "3.4.1": "2024-06-26", "3.5.0": "2024-08-12", "3.15.1": "2026-07-29"},
    "jax": {"0.4.30": "2024-06-18", "0.4.32": "2024-09-11", "0.9.2": "2026-03-18", "0.12.0": "2026-10-19"},
}
REFUSED = {"0.12.0": ("no wheel", "it wants Python >=9"), "0.4.32": ("yanked", "jax 0.4.32 was withdrawn")}
JAX = 'framework = "jax"\nversions = ["0.9.2"]\n'
FILES = (
    {"filename": "toy_kit-1.0-py3-none-any.whl", "upload-time": "2026-01-02T03"},
    {"filename": "toy_kit-1.0.tar.gz", "upload-time": "2026-01-03T00:00:00Z"},
    {"filename": "toy_kit-2.0-py3-none-any.whl", "requires-python": ">=9", "upload-time": "2026-02-01"},
    {"filename": "toy_kit-3.0-py3-none-any.whl", "yanked": "broken"},
    {"filename": "toy_kit-4.0-py3-none-any.whl", "upload-time": "2026-04-01"},
    {"filename": "toy_kit-what.whl"},
)


def plan_of(folder: Path, text: str) -> SweepPlan:
    path = folder / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return read_plan(path)


def test_read_plan_every_key_is_kept(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, EVERY_KEY)
    assert (plan.name, plan.limit_s, plan.seed, plan.repeat) == ("both", 1200.0, 3, False)
    assert plan.selection == ("--tests=quick", "-k", "scaling and not laws")
    (group,) = plan.groups
    assert (group.framework, group.package, group.framework_version) == ("tf", "keras", "2.21.0")
    assert group.versions == ("3.14.0", "minor >=3.3", "latest 2")
    assert group.companions == ({"numpy": "2.3.5"}, {})
    assert (group.modes, group.ways, group.devices) == (("graph", "eager"), ((), ("clip.two-calls",)), ("cpu", "cuda"))


def test_read_plan_without_keys_has_defaults(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, CELLS)
    assert (plan.name, plan.selection, plan.limit_s, plan.seed, plan.repeat) == ("plan", (), 1800.0, 0, True)
    (group,) = plan.groups
    assert (group.package, group.framework_version, group.modes, group.ways) == ("", "", (), ((),))
    assert (group.companions, group.devices) == (({},), ("cpu",))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Object missing required field `cells`"),
        ("cells = []", "cells: Expected `array` of length >= 1"),
        (f"colour = 1\n{CELLS}", "Object contains unknown field `colour`"),
        (f"name = 3\n{CELLS}", "name: Expected `str`, got `int`"),
        (f'name = "../x"\n{CELLS}', "name: got '../x', want letters"),
        (f"seed = -1\n{CELLS}", "seed: Expected `int` >= 0"),
        (f'seed = "0"\n{CELLS}', "seed: Expected `int`, got `str`"),
        (f'limit = "soon"\n{CELLS}', "limit: got 'soon', want a time such as 20m"),
        (f'limit = "0s"\n{CELLS}', "limit: got '0s', want a time such as 20m"),
        (f"workers = 0\n{CELLS}", "workers: Expected `int` >= 1"),
        (f'selection = "conformance/suites"\n{CELLS}', "selection: got 'conformance/suites', want options among"),
        (f'selection = "-k"\n{CELLS}', "selection: got '-k', want options among"),
        (f'selection = "--record=x"\n{CELLS}', "selection: got '--record=x', want options among"),
        (f'selection = "-k \'a"\n{CELLS}', "selection: No closing quotation"),
        (f'name = ""\n{CELLS}', "name: Expected `str` of length >= 1"),
        (
            f"selection = \"-k 'and and'\"\n{CELLS}",
            "selection: got -k 'and and', want an expression of pytest (expected",
        ),
        (f'selection = "-m=("\n{CELLS}', "selection: got -m '(', want an expression of pytest (expected"),
        (f"{CELLS}modes = []", "cells[0].modes: Expected `array` of length >= 1"),
        (f"{CELLS}mode = 'x'", "cells[0]: Object contains unknown field `mode`"),
        (f"{CELLS}{CELLS}modes = 'x'", "cells[1].modes: Expected `array`, got `str`"),
        (f"{CELLS}modes = ['-x']", "cells[0].modes[0]: Expected `str` matching regex"),
        (f"{CELLS}ways = []", "cells[0].ways: Expected `array` of length >= 1"),
        (f"{CELLS}companions = [{{ flax = '?' }}]", "cells[0].companions.flax: got '?', want a version"),
        (f"{CELLS}companions = [{{ '-e' = '1' }}]", "Expected `str` matching regex"),
        (f"{CELLS}package = '-r x'", "cells[0].package: Expected `str` matching regex"),
        (f"{CELLS}framework-version = '1'", "cells[0].framework-version: got '1', want it next to `package` alone"),
        (
            f"{CELLS}package = 'x'\nframework-version = 'new'",
            "cells[0].framework-version: got 'new', want a version or \"of its",
        ),
        ('[[cells]]\nframework = "jax"\nversions = ["1.x"]', "cells[0].versions: got '1.x', want a version, a range"),
        ('[[cells]]\nframework = "jax"\nversions = ["latest 0"]', "cells[0].versions: got 'latest 0', want"),
        (CELLS.replace("jax", "fixtures:/../../x"), "cells[0].framework: Expected `str` matching regex"),
        ("[[cells]", "Expected ']]'"),
    ],
)
def test_read_plan_wrong_value_is_refused_in_one_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(RecordError) as refused:
        plan_of(tmp_path, text)
    message = str(refused.value)
    assert f"plan.toml: {problem}" in message
    assert message.endswith("docs/sweep.md has the keys of a plan")
    assert "\n" not in message


def test_read_plan_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RecordError, match=r"is no text in UTF-8; name a plan's \.toml file"):
        read_plan(tmp_path / "plan.toml")
    with pytest.raises(RecordError, match=r"nowhere\.toml: cannot be read"):
        read_plan(tmp_path / "nowhere.toml")


def make_releases(*versions: str, yanked: str = "") -> Releases:
    """Releases, in this order."""
    return {Version(text): Release(outcome="yanked" if text == yanked else "") for text in versions}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["1.1.0"], ["1.1.0"]),
        (["9.9"], ["9.9"]),
        (["1.2.0", "1.1.0", "1.2.0"], ["1.1.0", "1.2.0"]),
        ([">=1.1,<1.3"], ["1.1.0", "1.2.0", "1.2.2"]),
        (["latest"], ["2.0.0"]),
        (["latest 3"], ["1.2.2", "1.3.0", "2.0.0"]),
        (["minor >=1.1"], ["1.1.0", "1.2.2", "1.3.0", "2.0.0"]),
        (["minor <2", "1.2.1"], ["1.0.0", "1.1.0", "1.2.1", "1.2.2", "1.3.0"]),
        (["2.1.0rc1"], ["2.1.0rc1"]),
    ],
)
def test_choose_rules_name_versions_in_order(rules: list[str], expected: list[str]) -> None:
    versions = ("1.0.0", "1.1.0", "1.2.0", "1.2.1", "1.2.2", "1.3.0", "2.0.0", "2.1.0rc1")
    assert choose(rules, make_releases(*versions, yanked="1.2.1")) == expected


@pytest.mark.parametrize("rule", [">=3", "minor >=3", "latest"])
def test_choose_rule_that_fits_nothing_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match="fits no release"):
        choose([rule], make_releases("1.0rc1"))


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index with the packages of `DATES`: jax 0.12 is for another Python, and 0.4.32 is yanked."""

    def read(package: str) -> Releases:
        if package not in DATES:
            raise RecordError(package, "its releases cannot be listed", "correct the name")
        return {
            Version(text): Release(f"{day}T00:00:00Z", *REFUSED.get(text, ())) for text, day in DATES[package].items()
        }

    monkeypatch.setattr(plan_module, "releases", read)


def cells_of_table(folder: Path, text: str) -> tuple[SweepCell, ...]:
    """The cells of a plan of one table."""
    (folder / "plan.toml").write_text(f"[[cells]]\n{text}", encoding="utf-8")
    return cells_of(read_plan(folder / "plan.toml"))


def test_cells_of_lists_have_every_combination(tmp_path: Path) -> None:
    result = cells_of_table(
        tmp_path,
        """framework = "jax"
        versions = ["0.4.30", "0.9.2", "0.9.2"]
        companions = [{ flax = "0.8.0" }, {}]
        modes = ["jit"]
        ways = [[], ["clip.stateless", "optimizer.chain"]]
        devices = ["cpu", "cuda"]""",
    )
    assert len(result) == len({cell.name for cell in result}) == 2 * 2 * 2 * 2
    assert result[0].name == "jax-0.4.30+flax.0.8.0-cpu-jit"
    assert (result[0].released, result[0].before) == ("2024-06-18", "2026-03-18T00:00:00Z")
    assert result[-1].name == "jax-0.9.2-cuda-jit+clip.stateless+optimizer.chain"


def test_cells_of_no_modes_have_those_of_the_adapter(tmp_path: Path) -> None:
    result = cells_of_table(tmp_path, 'framework = "jax"\nversions = ["0.9.2"]')
    assert [cell.mode for cell in result] == [""]
    with pytest.raises(RecordError, match="paddlepaddle: its releases cannot be listed"):
        cells_of_table(tmp_path, 'framework = "paddle"\nversions = ["3.3.1"]')


def test_cells_of_unavailable_versions_have_reasons(tmp_path: Path) -> None:
    result = cells_of_table(tmp_path, 'framework = "jax"\nversions = ["0.4.32", ">=0.4.30", "0.7"]')
    assert [(cell.version, cell.outcome) for cell in result] == [
        ("0.4.30", ""),
        ("0.4.32", "yanked"),
        ("0.7", "no solution"),
        ("0.9.2", ""),
        ("0.12.0", "no wheel"),
    ]
    assert result[1].reason == "jax 0.4.32 was withdrawn"
    assert result[2].reason == "no index has jax 0.7"
    assert result[4].reason == "it wants Python >=9"


def test_cells_of_companion_framework_is_pinned_named_or_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = 'framework = "tf"\npackage = "keras"\nversions = ["minor >=3.3"]\nmodes = ["graph"]\n'
    pinned = cells_of_table(tmp_path, table)
    assert pinned[0].name == "tf-2.21.0+keras.3.3.3-cpu-graph"
    fixed = cells_of_table(tmp_path, f'{table}framework-version = "2.18.0"')
    assert {cell.framework_version for cell in fixed} == {"2.18.0"}
    assert {cell.packages["keras"] for cell in fixed} == {*DATES["keras"]}
    past = cells_of_table(tmp_path, f'{table}framework-version = "of its time"')
    assert [cell.framework_version for cell in past] == ["2.16.1", "2.16.1", "2.17.0", "2.21.0"]
    assert newest_at(plan_module.releases("tensorflow-cpu"), "2024-03-07") == ""
    assert [cell.before[:10] for cell in past] == ["2024-07-11", "2024-08-12", "2026-07-29", ""]
    monkeypatch.setenv("CONFORMANCE_SUITE_PACKAGES", "/x")
    requirements = requirements_of(past[0])
    assert requirements.names == ("tensorflow-cpu==2.16.1", "keras==3.3.3")
    assert (requirements.before[:10], requirements.exempt) == ("2024-07-11", ("keras", "tensorflow-cpu"))


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('framework = "reference"\nversions = ["2"]', "nothing is installed for it"),
        ('framework = "jax"\nversions = [">=5"]', "'>=5' fits no release; correct the plan$"),
        ('framework = "jaxx"\nversions = ["1"]', "unknown framework 'jaxx': one of "),
        ('framework = "nosuch.mod:Cls"\nversions = ["1"]', "no module nosuch.mod can be imported from here"),
        (f'{JAX}modes = ["jitt"]', "jax: got mode 'jitt', want a mode of jax, such as jit, nojit"),
        (f'{JAX}devices = ["cpuu"]', "jax: got device 'cpuu', want cpu, auto or an accelerator: cuda, "),
        ('framework = "reference"\nversions = ["1"]\ndevices = ["cuda"]', "want cpu or auto: reference has no other"),
        (f'{JAX}ways = [["clip.foo"]]', "jax: got way 'clip.foo', want one that `conformance ways jax` lists"),
        (
            f'{JAX}modes = ["nojit"]\nways = [["clip.stateless"]]',
            "way 'clip.stateless' in mode 'nojit', want it in jit",
        ),
        (f'{JAX}ways = [["clip.stateless", "clip.named-chain"]]', "want at most one of each technique"),
        ('framework = "reference"\nversions = ["1"]\nmodes = ["eager"]', "want a mode of reference, such as emulated"),
        (f'{JAX}companions = [{{ jax = "0.4.30" }}]', "got jax as a companion, and it is the package that varies"),
        (
            'framework = "tf"\npackage = "keras"\nversions = ["3.3.3"]\ncompanions = [{ tensorflow = "2.16.1" }]',
            "got tensorflow as a companion, want its version as the framework's",
        ),
    ],
)
def test_cells_of_wrong_names_is_refused(tmp_path: Path, table: str, problem: str) -> None:
    with pytest.raises(RecordError, match=rf"plan\.toml: cells\[0\]: .*{problem}"):
        cells_of_table(tmp_path, table)


@pytest.mark.parametrize(
    ("framework", "modes"),
    [
        ("reference", ["emulated", "ranks", "offload"]),
        ("tf", ["graph", "eager", "xla", "rewrite", "mirrored", "tflite"]),
        ("paddle", ["dygraph", "static", "data-parallel"]),
        ("torch", ["eager", "compile", "ddp", "fsdp", "trainer-plain", "torchao", "fabric"]),
        (TOY, ["of-its-own"]),
    ],
)
def test_check_mode_known_mode_is_taken(framework: str, modes: list[str]) -> None:
    for mode in ["", *modes]:
        check_mode(framework, mode)


def test_check_mode_unknown_to_files_asks_the_adapter() -> None:
    with pytest.raises(ValueError, match="got mode 'master', want a mode of reference, such as emulated, ranks, offl"):
        check_mode("reference", "master")
    with pytest.raises(UnknownFramework, match="conformance_toy"):
        check_mode(TOY, "of-its-own", loadable=True)


@pytest.mark.parametrize(
    ("framework", "device"), [("jax", "METAL"), ("torch", "mtia"), (TOY, "x"), ("reference", "auto")]
)
def test_check_device_possible_device_is_taken(framework: str, device: str) -> None:
    check_device(framework, device)


@pytest.fixture(autouse=True)
def uncached_releases() -> Iterator[None]:
    """Empties the caches of releases before and after a test."""
    for function in (releases, plan_module._settings_of_pip):
        function.cache_clear()
    yield
    for function in (releases, plan_module._settings_of_pip):
        function.cache_clear()


@pytest.fixture
def toy_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An index that has toy-kit only, in pip's settings."""
    with serve_index(tmp_path, {"toy-kit": FILES}) as address:
        for name, value in (("CONFIG_FILE", "/dev/null"), ("INDEX_URL", address)):
            monkeypatch.setenv(f"PIP_{name}", value)
        monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
        yield "toy-kit"


def test_releases_of_an_index_have_dates_and_reasons(toy_index: str) -> None:
    known = releases(toy_index)
    assert [str(version) for version in known] == ["1.0", "2.0", "3.0", "4.0"]
    first, second, third, last = known.values()
    assert (first.day, first.outcome, last.outcome) == ("2026-01-02", "", "")
    assert second.outcome == "no wheel"
    assert "wants Python >=9" in second.reason
    assert third == Release("", "yanked", "toy-kit 3.0 was withdrawn")
    assert next_upload(known, "1.0") == "2026-04-01"
    assert next_upload(known, "4.0") == ""


def test_releases_of_a_folder_are_those_that_pip_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, tag in (("1.0+cpu", "py3-none-any"), ("2.0rc1", "py3-none-any"), ("3.0", "cp27-none-any")):
        write_wheel(tmp_path, "toy-kit", version, tag=tag)
    for name, value in offline(tmp_path).items():
        monkeypatch.setenv(name, value)
    assert releases("toy-kit") == {Version("1.0"): Release(), Version("2.0rc1"): Release()}


@pytest.mark.usefixtures("toy_index")
def test_releases_of_an_unknown_package_is_refused_in_one_line() -> None:
    with pytest.raises(RecordError, match=r"^unknown-kit: its releases cannot be listed \(No matching .*index-url$"):
        releases("unknown-kit")


def test_check_release_missing_version_names_the_next_one() -> None:
    known: dict[Version, Any] = {Version("2.6.0"): Release(), Version("2.13.0"): Release()}
    check_release("torch", Version("2.6.0+cpu"), known)
    with pytest.raises(RecordError, match=r"torch 2\.7: no index has it; the next one is 2\.13\.0"):
        check_release("torch", Version("2.7"), known)


GOOD = {"jax": "0.9.2", "jaxlib": "0.9.2", "optax": "0.2.8", "flax": "0.12.6", "etils": "1.14", "new": "1"}
BAD = {"jax": "0.6.2", "jaxlib": "0.6.2", "optax": "0.2.5", "flax": "0.10.7", "etils": "1.12"}
Versions = Mapping[str, str]


def search(first: int, count: int, skipped: Mapping[int, str]) -> tuple[Boundary, list[int]]:
    """The boundary of a sequence that is bad from `first`, and the members that the search judged."""
    judged: list[int] = []

    def state(index: int) -> Answer:
        if index in skipped:
            return "", skipped[index]
        return ("bad" if index >= first else "good"), ""

    def ask(index: int) -> Answer:
        judged.append(index)
        return state(index)

    return bisect(count, ask, state), judged


@st.composite
def sequences(draw: st.DrawFn) -> tuple[int, int, dict[int, str]]:
    """An index of the change, a count, and members without a state."""
    count = draw(st.integers(2, 500))
    holes = st.sets(st.integers(1, max(1, count - 2)), max_size=count)
    skipped = draw(st.just(set()) | holes) if count > 2 else set()
    return draw(st.integers(1, count - 1)), count, {index: f"no wheel {index}" for index in skipped}


@given(sequences())
def test_bisect_of_a_sequence_finds_the_change_or_the_range_of_its_holes(
    sequence: tuple[int, int, dict[int, str]],
) -> None:
    first, count, skipped = sequence
    result, judged = search(first, count, skipped)
    assert result.good < first <= result.bad
    assert {result.good, result.bad}.isdisjoint(skipped)
    assert {*range(result.good + 1, result.bad)} == {*result.between}
    assert all(reason == skipped[index] for index, reason in result.between.items())
    assert len(judged) == len({*judged})
    assert skipped or len(judged) <= math.ceil(math.log2(count))
    assert {0, count - 1} & {*judged} == set()


@given(sequences(), st.data())
def test_bisect_unstable_member_becomes_a_hole(sequence: tuple[int, int, dict[int, str]], data: st.DataObject) -> None:
    first, count, _ = sequence
    unstable = data.draw(st.sets(st.integers(1, max(1, count - 2)), max_size=3)) if count > 2 else set()

    def state(index: int) -> Answer:
        return ("bad" if index >= first else "good"), ""

    result = bisect(count, state, lambda index: ("", "unstable") if index in unstable else state(index))
    assert result.good < first <= result.bad
    assert {result.good, result.bad} & unstable == set()
    assert {*range(result.good + 1, result.bad)} <= {*result.skipped} <= unstable


def test_bisect_unstable_end_is_refused() -> None:
    with pytest.raises(UnstableEnd) as raised:
        bisect(2, lambda _: ("good", ""), lambda index: ("good" if index else "bad", "it passes now"))
    assert raised.value.args == (1, "it passes now")


def find_crossing(
    fails: Callable[[Versions], bool], impossible: Callable[[Versions], bool] = lambda _: False
) -> Crossing:
    """The crossing for a function of versions that says what fails."""
    good, bad = (SweepCell("jax", pins["jax"], "jax", pins["jax"]) for pins in (GOOD, BAD))

    def judge(cell: SweepCell) -> tuple[Side, str]:
        versions = {**(GOOD if cell.version == GOOD["jax"] else BAD), **cell.companions}
        if impossible(versions):
            return "", "no solution: they do not go together"
        return ("bad", "") if fails(versions) else ("good", "")

    return cross(good, bad, (GOOD, BAD), judge)


def test_companions_of_cell_are_packages_that_compute() -> None:
    different = differences(GOOD, BAD)
    assert different["new"] == ("1", "")
    assert companions_of(SweepCell("jax", "0.6.2", "jax", "0.6.2"), different) == ["flax", "optax"]
    assert companions_of(SweepCell("jax", "0.6.2", "optax", "0.2.5"), ["optax", "jaxlib", "numpy"]) == ["numpy"]


@pytest.mark.parametrize("name", ["jax", "optax", "flax"])
def test_cross_package_that_decides_is_guilty(name: str) -> None:
    result = find_crossing(lambda versions: versions[name] == BAD[name])
    assert result.guilty == name
    assert all(cell.side for cell in result.cells)
    assert len(result.cells) == {"jax": 2, "flax": 3, "optax": 4}[name]


def test_cross_companion_that_cannot_be_reverted_is_added() -> None:
    def fails(versions: Versions) -> bool:
        return versions["optax"] == BAD["optax"]

    def impossible(versions: Versions) -> bool:
        return versions["flax"] == BAD["flax"] and versions["optax"] == GOOD["optax"]

    result = find_crossing(fails, impossible)
    assert result.guilty == "optax"
    assert [cell.side for cell in result.cells] == ["good", "bad", "bad", "", "bad"]


def test_cross_companions_refused_together_come_one_by_one() -> None:
    def impossible(versions: Versions) -> bool:
        return versions["jax"] == BAD["jax"] and versions["flax"] == GOOD["flax"]

    result = find_crossing(lambda versions: versions["optax"] == BAD["optax"], impossible)
    assert result.guilty == "optax"
    assert [cell.side for cell in result.cells] == ["", "bad", "", "good"]
    either = find_crossing(lambda versions: "0.6.2" in versions.values() or versions["optax"] == "0.2.5", impossible)
    assert (either.guilty, either.why) == ("", "no package decides alone")


def test_cross_two_packages_together_are_both_named() -> None:
    result = find_crossing(lambda versions: versions["optax"] == "0.2.5" and versions["jax"] == "0.6.2")
    assert result.guilty == ""
    assert result.why == "jax and optax together give the failure: either of them reverted alone passes"
    several = find_crossing(lambda versions: versions["jax"] == "0.6.2" and versions["flax"] == "0.10.7")
    assert several.why == "jax and flax together give the failure: either of them reverted alone passes"


def test_cross_two_packages_alone_are_not_guilty() -> None:
    result = find_crossing(lambda versions: versions["optax"] == "0.2.5" or versions["jax"] == "0.6.2")
    assert (result.guilty, result.why) == ("", "either jax or its companions alone give the failure")


def test_cross_impossible_mixture_has_a_reason() -> None:
    result = find_crossing(
        lambda versions: versions["jax"] == "0.6.2", lambda versions: versions["flax"] == BAD["flax"]
    )
    assert (result.guilty, result.why) == (
        "jax",
        "jax 0.6.2 fails with the companions of 0.9.2; the reverse cannot be judged",
    )
    result = find_crossing(
        lambda versions: versions["jax"] == "0.6.2", lambda versions: versions["flax"] == GOOD["flax"]
    )
    assert result.guilty == "jax"
    nothing = find_crossing(lambda _: True, lambda _: True)
    assert (nothing.guilty, nothing.why) == ("", "no package decides alone")
    assert {cell.reason for cell in nothing.cells} == {"no solution: they do not go together"}


def test_cross_without_companions_judges_nothing() -> None:
    good, bad = SweepCell("tf", "2.19.1", "keras", "3.9.0"), SweepCell("tf", "2.19.1", "keras", "3.8.0")
    result = cross(good, bad, ({"keras": "3.9.0"}, {"keras": "3.8.0"}), lambda _: pytest.fail("a cell is judged"))
    assert (result.guilty, result.cells, result.differences) == ("keras", (), {"keras": ("3.9.0", "3.8.0")})
