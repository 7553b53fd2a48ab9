"""What is at the place of an output stays what it is: devices and FIFOs are written to, links are followed."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from conformance import cli
from results.record.files import RecordError, replace
from results.record.reading import load, write
from tests.support.hostile import call, refused
from tests.support.small_record import BASE
from tests.support.suite_runs import ROOT, environment, hang_limit

TITLE = "**Conformance: nothing is worse: identical.**"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    write(tmp_path / "good.json", BASE)
    return tmp_path / "good.json"


@pytest.fixture
def null(tmp_path: Path) -> Path:
    """A device of the kind of /dev/null that a fault may destroy, where one can be made."""
    path = tmp_path / "null"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        path.write_bytes(b"")
    except PermissionError:
        pytest.skip("only root makes devices, where they may be opened")
    return path


def compared(good: Path, output: Path | str, **streams: object) -> subprocess.CompletedProcess[str]:
    """A comparison by the command, in a process of its own."""
    words = [sys.executable, "-m", "conformance", "compare", good, good, "--format", "markdown", "--output", output]
    return subprocess.run(words, cwd=ROOT, env=environment(), text=True, timeout=hang_limit(), check=False, **streams)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("words", [("compare",), ("report",), ("table", "--format", "markdown")])
def test_a_device_stays_a_device(words: tuple[str, ...], good: Path, null: Path) -> None:
    if words == ("report",):
        pytest.importorskip("jinja2")
    records = [good, good] if words == ("compare",) else [good]
    ended = call(cli.main, *words, *records, "--output", null)
    assert (ended.status, ended.errors) == (0, "")
    assert stat.S_ISCHR(null.stat().st_mode)


def test_a_record_written_to_a_device_leaves_it_in_place(null: Path) -> None:
    write(null, BASE)
    assert stat.S_ISCHR(null.stat().st_mode)


def test_a_fifo_passes_the_output_on(good: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text("utf-8")), daemon=True)
    reader.start()
    assert call(cli.main, "compare", good, good, "--format", "markdown", "--output", fifo).status == 0
    reader.join(10.0)
    assert read[0].startswith(TITLE)
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_pipe_behind_a_stream_of_its_own_takes_the_output(good: Path) -> None:
    ended = compared(good, "/proc/self/fd/1", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(TITLE)


def test_a_file_behind_a_stream_of_its_own_keeps_what_it_had(good: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary"
    summary.write_text("before\n", "utf-8")
    with summary.open("a") as stream:
        assert compared(good, "/proc/self/fd/1", stdout=stream).returncode == 0
    assert summary.read_text("utf-8").startswith(f"before\n{TITLE}")


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_followed_to_the_file_that_it_leads_to(there: bool, tmp_path: Path) -> None:
    target, link, second = tmp_path / "folder" / "page", tmp_path / "link", tmp_path / "second"
    target.parent.mkdir()
    if there:
        target.write_text("old", "utf-8")
    link.symlink_to("folder/page")
    second.symlink_to(link)
    replace(second, b"new")
    assert target.read_text("utf-8") == "new"
    assert link.is_symlink()
    assert second.is_symlink()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "link", "page", "second"]


@pytest.mark.parametrize("kind", ["folder", "circle", "socket", "block"])
def test_what_can_neither_be_written_to_nor_replaced_is_refused(kind: str, good: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    if kind == "folder":
        place.mkdir()
    elif kind == "circle":
        place.symlink_to(place)
    else:
        try:
            os.mknod(place, 0o600 | (stat.S_IFSOCK if kind == "socket" else stat.S_IFBLK), os.makedev(240, 250))
        except PermissionError:
            pytest.skip("only root makes devices")
    before = place.lstat()
    refused(call(cli.main, "compare", good, good, "--output", place), place)
    assert os.path.samestat(before, place.lstat())
    with pytest.raises(RecordError, match="place: "):
        replace(place, b"")


def test_a_link_that_leads_to_a_record_stays_a_link(good: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(good)
    write(link, BASE)
    assert link.is_symlink()
    assert load(good) == BASE
