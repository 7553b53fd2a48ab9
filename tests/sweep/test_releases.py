"""Releases: those that pip finds here, their dates, and why others cannot be had."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from conformance.sweep import releases as module
from conformance.sweep.releases import Release, check_release, next_upload, releases
from results.record.files import RecordError
from tests.support.wheels import offline, serve_index, write_wheel

FILES = (
    {"filename": "toy_kit-1.0-py3-none-any.whl", "upload-time": "2026-01-02T03"},
    {"filename": "toy_kit-1.0.tar.gz", "upload-time": "2026-01-03T00:00:00Z"},
    {"filename": "toy_kit-2.0-py3-none-any.whl", "requires-python": ">=9", "upload-time": "2026-02-01"},
    {"filename": "toy_kit-3.0-py3-none-any.whl", "yanked": "broken"},
    {"filename": "toy_kit-4.0-py3-none-any.whl", "upload-time": "2026-04-01"},
    {"filename": "toy_kit-what.whl"},
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No release is known."""
    for function in (module.releases, module._settings_of_pip):
        function.cache_clear()
    yield
    for function in (module.releases, module._settings_of_pip):
        function.cache_clear()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An index with toy-kit alone, which pip asks."""
    with serve_index(tmp_path, {"toy-kit": FILES}) as address:
        for name, value in (("CONFIG_FILE", "/dev/null"), ("INDEX_URL", address)):
            monkeypatch.setenv(f"PIP_{name}", value)
        monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
        yield "toy-kit"


def test_releases_of_an_index_have_dates_and_reasons(index: str) -> None:
    known = releases(index)
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


@pytest.mark.usefixtures("index")
def test_releases_of_an_unknown_package_is_refused_in_one_line() -> None:
    with pytest.raises(RecordError, match=r"^unknown-kit: its releases cannot be listed \(No matching .*index-url$"):
        releases("unknown-kit")


def test_check_release_missing_version_names_the_next_one() -> None:
    known: dict[Version, Any] = {Version("2.6.0"): Release(), Version("2.13.0"): Release()}
    check_release("torch", Version("2.6.0+cpu"), known)
    with pytest.raises(RecordError, match=r"torch 2\.7: no index has it; the next one is 2\.13\.0"):
        check_release("torch", Version("2.7"), known)
