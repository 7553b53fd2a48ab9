"""Locks: what is in the committed ones, how they are made and read, and that this environment is as they say."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from frameworks import lock
from frameworks.installing import companions, locks, pip
from frameworks.installing.distributions import DISTRIBUTIONS, Unavailable, bare
from tests.pips import Pip
from tests.support import ROOT

NAMES = [locks.SUITE, locks.TOOLS, locks.ALL, *DISTRIBUTIONS]
PYTHONS = ("3.11", "3.12", "3.13")


def pins(name: str, python: str) -> dict[str, str]:
    """A committed lock as it is on Linux x86-64 with a Python."""
    where = {"python_version": python, "sys_platform": "linux", "platform_machine": "x86_64"}
    lines = (locks.FOLDER / f"{name}.txt").read_text("utf-8").splitlines()
    wishes = [Requirement(line) for line in lines if not line.startswith("#")]
    held = [wish for wish in wishes if wish.marker is not None and wish.marker.evaluate(where)]
    assert len({canonicalize_name(wish.name) for wish in held}) == len(held), "two versions of one package"
    return {canonicalize_name(wish.name): str(wish.specifier).removeprefix("==") for wish in held}


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_holds_versions_and_nothing_of_the_machine_that_made_it(name: str) -> None:
    head, *lines = (locks.FOLDER / f"{name}.txt").read_text("utf-8").splitlines()
    assert head.startswith("# Made by `conformance self lock` on Linux x86-64 for Python 3.11, 3.12, 3.13.")
    for line in lines:
        assert re.fullmatch(rf'[a-z0-9-]+==[\w.]+ ; python_version in "[\d. ]+" and {re.escape(locks.PLATFORM)}', line)


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("framework", DISTRIBUTIONS)
def test_locks_agree_with_the_pins(framework: str, python: str) -> None:
    chosen = DISTRIBUTIONS[framework]
    for name in (framework, locks.ALL):
        held = pins(name, python)
        assert held[canonicalize_name(bare(chosen.cpu))] == chosen.pinned
        assert locks.names(chosen.companions) <= held.keys()
        for limit in map(Requirement, chosen.limits_of(chosen.pinned)):
            assert limit.specifier.contains(held[limit.name])


@pytest.mark.parametrize("python", PYTHONS)
def test_what_every_environment_has_is_the_same_everywhere(python: str) -> None:
    suite = pins(locks.SUITE, python)
    apart = {
        (name, package): version
        for name in NAMES
        for package, version in pins(name, python).items()
        if suite.get(package, version) != version
    }
    assert {package for _, package in apart} <= {"numpy"}, apart
    assert {name for name, _ in apart} <= {"paddle", locks.ALL}, apart


@pytest.mark.parametrize("name", [locks.SUITE, locks.TOOLS])
@pytest.mark.parametrize("python", PYTHONS)
def test_locks_meet_the_suites_requirements(name: str, python: str) -> None:
    held = pins(name, python)
    wishes = [Requirement(text) for text in lock._listed(lock._OWN[name])]
    assert wishes
    assert [str(w) for w in wishes if not w.specifier.contains(held[canonicalize_name(w.name)])] == []


@pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="only tox's environments are made under a lock")
def test_this_environment_deviates_nowhere() -> None:
    assert locks.deviations(locks.read(locks.TOOLS)) == []


def test_deviations_are_those_of_installed_packages() -> None:
    held = {"pytest": "0.1", "packaging": locks.installed_version("packaging") or "", "no-such-distribution": "1"}
    assert locks.deviations(held) == [f"pytest {pytest.__version__}, not 0.1"]


@pytest.mark.parametrize(
    ("version", "pinned", "same"),
    [
        ("2.13.0", "2.13.0", True),
        ("2.13.0+cpu", "2.13.0", True),
        ("2.13.0", "2.13.0+cpu", False),
        ("2.1", "2.0", False),
    ],
)
def test_a_local_label_counts_only_if_it_is_pinned(version: str, pinned: str, same: bool) -> None:
    assert locks.same(version, pinned) is same


def test_what_is_written_is_read_where_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "FOLDER", tmp_path)
    here = ".".join(map(str, sys.version_info[:2]))
    locks.write(
        tmp_path / "x.txt", {here: {"numpy": "2.4.6", "scipy": "1.17.1"}, "3.99": {"numpy": "2.4.6", "new": "1"}}
    )
    assert locks.examples("x") == {"new": "1", "numpy": "2.4.6", "scipy": "1.17.1"}
    there = sys.platform == "linux" and platform.machine() == "x86_64"
    assert locks.read("x") == ({"numpy": "2.4.6", "scipy": "1.17.1"} if there else {})
    locks.write(tmp_path / "y.txt", {"3.99": {"numpy": "2.4.6"}})
    assert locks.read("y") == {}, "made for another Python"
    assert locks.examples("nothing") == {}


# ---------------------------------------------------------------- making them


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Pip:
    made = Pip()
    monkeypatch.setattr(subprocess, "run", made)
    return made


def test_a_lock_is_what_pip_would_install_for_processors_and_gpus(
    index: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "FOLDER", tmp_path)
    index.resolved = {"JAX": ("0.10.2", []), "numpy": ("2.4.6", [])}
    assert lock.main(["jax"]) == 0
    assert locks.examples("jax") == {"jax": "0.10.2", "numpy": "2.4.6"}
    processors, gpus = index.calls
    companions = DISTRIBUTIONS["jax"].companions
    for call, package in ((processors, "jax==0.10.2"), (gpus, "jax[cuda12]==0.10.2")):
        assert call.words[:4] == ["install", "--dry-run", "--ignore-installed", "--report"]
        assert {package, *companions, "numpy>=1.26", "scikit-learn>=1.4"} <= set(call.words)
    assert (processors.pins, gpus.pins) == ([], ["jax==0.10.2", "numpy==2.4.6"])


def test_later_pythons_have_the_versions_of_the_first_where_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, str]]] = []

    def solve(_: str, interpreter: str, wishes: dict[str, str]) -> dict[str, str]:
        asked.append((interpreter, wishes))
        if interpreter == "c" and wishes:
            raise Unavailable
        return {"numpy": wishes.get("numpy", interpreter)}

    monkeypatch.setattr(lock, "solve", solve)
    solutions = lock.solve_each("jax", {"3.10": "b", "3.9": "a", "3.11": "c"})
    assert solutions == {"3.9": {"numpy": "a"}, "3.10": {"numpy": "a"}, "3.11": {"numpy": "c"}}
    assert asked == [("a", {}), ("b", {"numpy": "a"}), ("c", {"numpy": "a"}), ("c", {})]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["jax"], "jax cannot be locked (No matching distribution found for jax==0.10.2)"),
        (["--python", "/no/python", "jax"], "/no/python is no Python that runs; name another with --python"),
    ],
)
def test_what_cannot_be_locked_is_one_line(
    index: Pip,
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(locks, "FOLDER", tmp_path)
    index.status, index.errors = 1, "ERROR: No matching distribution found for jax==0.10.2\n"
    try:
        status = lock.main(words)
    except SystemExit as ended:
        status = ended.code
    assert (status, capsys.readouterr().err) == (2, f"{told}\n")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- companions


def test_the_next_release_is_found_by_upload_dates(index: Pip) -> None:
    index.uploads = {
        "jax": {"0.9.1": "2026-03-02", "0.9.2": "2026-03-18", "0.8.4": "2026-04-02", "0.10.0": "2026-04-16"}
    }
    assert companions.next_release("jax", "0.9.1", {}) == date(2026, 3, 19)
    assert companions.next_release("jax", "0.9.2", {}) == date(2026, 4, 17), "0.8.4 came later, and is no newer version"
    assert companions.next_release("jax", "0.10.0", {}) is None


def test_dates_are_not_guessed(index: Pip) -> None:
    index.dated = False
    with pytest.raises(pip.Undated):
        companions.next_release("jax", "0.9.2", {})


@pytest.mark.parametrize(
    ("declared", "numpy"),
    [
        (["numpy>=2"], "2.4.6"),
        (["numpy<2.2,>=1.26"], "2.1.3"),
        (["numpy<2 ; extra == 'old'"], "2.4.6"),
        (["numpy<2 ; python_version < '3'"], "2.4.6"),
    ],
)
def test_what_the_suite_computes_with_stays_as_it_is_locked_where_it_may(
    index: Pip, declared: list[str], numpy: str
) -> None:
    index.uploads = {"tensorflow-cpu": {"2.19.1": "2025-08-12"}}
    own = {"ml_dtypes": ("0.5.1", []), "numpy": ("2.1.3", []), "rich": ("14.0", [])}
    index.resolved = {"tensorflow-cpu": ("2.19.1", declared), "keras": ("3.11.1", []), **own}
    suite = {"ml-dtypes": "0.6.0", "numpy": "2.4.6", "pytest": "9.2.0", "rich": "15.0.0"}
    choice = companions.choose(DISTRIBUTIONS["tf"], "2.19.1", "", {}, suite)
    built_on_it = {"ml-dtypes": "0.6.0" if numpy == "2.4.6" else "0.5.1", "numpy": numpy}
    assert choice.pins == {"tensorflow-cpu": "2.19.1", "keras": "3.11.1", "rich": "15.0.0", **built_on_it}
    assert choice.remark == ""


def test_a_companion_that_is_newer_than_its_time_leaves_the_others_in_theirs(index: Pip) -> None:
    index.uploads = {"tensorflow-cpu": {"2.20.0": "2025-08-13", "2.21.0": "2026-03-06"}}
    index.resolved = {"tensorflow-cpu": ("2.20.0", []), "keras": ("3.13.2", []), "h5py": ("3.14.0", [])}
    index.refused = lambda asked: "--uploaded-prior-to" in asked.words and "keras==3.15.1" in asked.pins
    choice = companions.choose(DISTRIBUTIONS["tf"], "2.20.0", "", {"keras": "3.15.1"}, {})
    *_, dated, undated = index.calls
    assert ("--uploaded-prior-to" in dated.words, dated.pins) == (True, [])
    assert undated.pins == ["h5py==3.14.0", "keras==3.15.1", "tensorflow-cpu==2.20.0"]
    assert ("--uploaded-prior-to" in undated.words, choice.remark) == (False, "")


def test_a_companion_that_goes_with_nothing_of_its_time_is_told(index: Pip) -> None:
    index.uploads = {"tensorflow-cpu": {"2.20.0": "2025-08-13", "2.21.0": "2026-03-06"}}
    index.resolved = {"tensorflow-cpu": ("2.20.0", []), "keras": ("3.15.1", []), "h5py": ("3.16.0", [])}
    index.refused = lambda asked: "--uploaded-prior-to" in asked.words or "h5py==3.14.0" in asked.pins
    choice = companions.choose(DISTRIBUTIONS["tf"], "2.20.0", "", {"keras": "3.15.1"}, {})
    assert (choice.pins["h5py"], choice.remark) == ("3.16.0", companions.NEWEST)


def test_what_nothing_goes_with_is_refused(index: Pip) -> None:
    index.uploads = {"tensorflow-cpu": {"2.20.0": "2025-08-13", "2.21.0": "2026-03-06"}}
    index.refused = lambda _: True
    with pytest.raises(Unavailable, match="No matching distribution"):
        companions.choose(DISTRIBUTIONS["tf"], "2.20.0", "", {"keras": "3.8.0"}, {})


def test_a_choice_by_date_leaves_folders_of_this_machine_out_and_keeps_the_rest_of_pips_settings(
    index: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    index.settings = (
        ":env:.timeout='9'\nglobal.cert='/etc/cert'\nglobal.extra-index-url='file:///srv/simple https://example.org/own'\n"
        "global.find-links='/srv/wheels'\ninstall.no-cache-dir='true'\nwheel.x='y'\n"
    )
    monkeypatch.setenv("PIP_CERT", "/other/cert")
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.org/simple")
    settings = {name: value for name, value in pip.remote().items() if name.startswith("PIP_")}
    assert settings == {
        "PIP_CERT": "/other/cert",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_EXTRA_INDEX_URL": "https://example.org/own",
        "PIP_INDEX_URL": "https://example.org/simple",
        "PIP_NO_CACHE_DIR": "true",
    }


def test_tox_installs_under_locks_that_are_there() -> None:
    named = set(re.findall(r"-c locks/(\S+)\.txt", (ROOT / "tox.ini").read_text("utf-8")))
    assert named == set(NAMES) - {locks.SUITE}
