"""Environments of cells, from local wheels: made once, whole or not at all, removed when they are many and unused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from conformance.sweep.environments import EnvironmentCache, python_of
from frameworks.installer.distributions import Unavailable
from frameworks.installer.resolution import EnvironmentRequest, Lock, package_of, requirements_of, resolve
from tools.benchmarks.sweeps.wheels import PACKAGE, TOY, here, offline, write_wheel

PRINT_VERSION = "import conformance_toy, numpy; print(conformance_toy.VERSION)"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two versions of a package, all that pip and uv see."""
    for version in ("1.0", "2.0"):
        write_wheel(tmp_path / "wheels", PACKAGE, version)
    for name, value in offline(tmp_path / "wheels").items():
        monkeypatch.setenv(name, value)
    return tmp_path / "wheels"


def cache_of(folder: Path, largest: int = 2**40) -> EnvironmentCache:
    """A cache of environments that see the packages of this one."""
    return EnvironmentCache(folder / "environments", largest, here())


def lock(version: str) -> Lock:
    """A lock of one package."""
    return Lock((f"{PACKAGE}=={version}",), {PACKAGE: version})


def toy_version(python: Path) -> str:
    """The version that an environment has."""
    done = subprocess.run([str(python), "-c", PRINT_VERSION], capture_output=True, text=True, check=True, cwd="/")
    return done.stdout.strip()


@pytest.mark.usefixtures("wheels")
def test_an_environment_is_made_once_and_a_half_made_one_is_never_used(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    half = cache.folder / lock("1.0").name
    python_of(half).parent.mkdir(parents=True)
    python_of(half).write_text("#!/bin/sh\nexit 3\n")
    (half / "left").touch()
    assert not cache.ready(lock("1.0"))
    with cache.using(lock("1.0")) as python:
        assert toy_version(python) == "1.0"
    assert not (half / "left").exists()
    ready = half / "ready.json"
    assert json.loads(ready.read_bytes())["pins"] == {PACKAGE: "1.0"}
    made = ready.stat().st_ino
    with cache.using(lock("1.0")), cache.using(lock("2.0")) as other:
        assert toy_version(other) == "2.0"
    assert ready.stat().st_ino == made


@pytest.mark.usefixtures("wheels")
def test_a_failed_installation_leaves_nothing(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    with pytest.raises(Unavailable, match=f"{PACKAGE}==3.0"), cache.using(lock("3.0")):
        pass
    assert not (cache.folder / lock("3.0").name).exists()


def filled(cache: EnvironmentCache, *names: str, size: int = 100) -> None:
    """Puts environments into a cache, the least recently used first."""
    for place, name in enumerate(names):
        ready = cache.folder / name / "ready.json"
        ready.parent.mkdir(parents=True)
        ready.write_text(json.dumps({"bytes": size}))
        os.utime(ready, (1000 + place, 1000 + place))


def test_the_least_recently_used_environments_go_first(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, largest=250)
    filled(cache, "b", "a", "d", "c")
    assert cache.evict() == ["b", "a"]
    assert sorted(path.name for path in cache.folder.iterdir() if path.is_dir()) == ["c", "d"]
    assert cache.evict() == []


def test_one_in_use_stays(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, largest=150)
    filled(cache, lock("1.0").name, "other", "last")
    with cache.using(lock("1.0")):
        assert {path.name for path in cache.folder.iterdir() if path.is_dir()} == {lock("1.0").name}
        program = f"""
from pathlib import Path
from conformance.sweep.environments import EnvironmentCache
print(EnvironmentCache(Path({str(cache.folder)!r}), 0).evict())
"""
        asked = [sys.executable, "-c", program]
        assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "[]\n"
    assert EnvironmentCache(cache.folder, 0).evict() == [lock("1.0").name]


def test_two_that_want_the_same_environment_make_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(_: EnvironmentCache, place: Path, __: Lock) -> None:
        made.append(place)
        place.mkdir()
        (place / "ready.json").write_text('{"bytes": 1}')

    monkeypatch.setattr(EnvironmentCache, "_make", make)

    def use() -> None:
        with cache_of(tmp_path).using(lock("1.0")):
            pass

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


# ---------------------------------------------------------------- locks


def test_an_environment_is_named_by_its_lock() -> None:
    same = Lock(("a==1",), {"a": "1", "b": "2"}), Lock(("a==1",), {"b": "2", "a": "1"}, remark="why")
    others = Lock(("a==1",), {"a": "1", "b": "3"}), Lock(("a==1", "b"), {"a": "1", "b": "2"})
    assert same[0].name == same[1].name
    assert len({same[0].name, *(each.name for each in others)}) == 3


def test_the_requirements_are_the_frameworks_companions_limits_and_suite() -> None:
    wanted = EnvironmentRequest("jax", "0.4.20", "keras", {"flax": "0.7.0", "keras": "3.3.3"})
    requirements, indexes = requirements_of(wanted)
    assert requirements[:5] == ["jax==0.4.20", "flax==0.7.0", "optax", "jmp", "orbax-checkpoint"]
    assert requirements[5:7] == ["keras==3.3.3", "numpy<2"]
    assert any(each.startswith("pytest-xdist") for each in requirements)
    assert indexes == []
    alone, _ = requirements_of(EnvironmentRequest("torch", "2.13.0", "trainer", {"accelerate": "1.12.0"}, suite=False))
    assert alone == ["torch==2.13.0", "transformers", "accelerate==1.12.0"]


def test_requirements_of_a_wheel_are_part_of_its_lock(wheels: Path) -> None:
    write_wheel(wheels, "toy-core", "1.5")
    write_wheel(wheels, PACKAGE, "4.0", requires=["toy-core<2"])
    write_wheel(wheels, PACKAGE, "5.0", requires=["toy-core>=2"])
    assert package_of(TOY) == PACKAGE
    assert resolve(EnvironmentRequest(TOY, "4.0", suite=False)).pins == {PACKAGE: "4.0", "toy-core": "1.5"}
    with pytest.raises(Unavailable, match="toy-core"):
        resolve(EnvironmentRequest(TOY, "5.0", suite=False))
