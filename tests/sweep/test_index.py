"""Indexes of packages: JSON and HTML, folders, what they do not say, logins, and pip's settings."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from packaging.tags import sys_tags
from packaging.version import Version

from conformance.sweep.index import IndexSettings, PackageIndex, pip_settings
from frameworks.installer.distributions import Unavailable
from tools.benchmarks.sweeps.wheels import write_wheel

JSON, HTML = "application/vnd.pypi.simple.v1+json", "text/html"
HERE = str(next(sys_tags()))


@dataclass
class FakeIndex:
    """An index on the loopback.

    Attributes:
        pages: content type and content by path; 404 for others.
        asked: path and headers of each request.
    """

    address: str
    pages: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def has(self, name: str, *files: dict[str, Any]) -> None:
        """Puts a page of PEP 691 there."""
        content = {"meta": {"api-version": "1.1"}, "name": name, "files": list(files)}
        self.pages[f"/simple/{name}/"] = JSON, json.dumps(content).encode()


@pytest.fixture
def fake() -> Iterator[FakeIndex]:
    """An index without any package."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.asked.append((self.path, dict(self.headers)))
            kind, content = index.pages.get(self.path, ("", b""))
            self.send_response(200 if kind else 404)
            self.send_header("Content-Type", kind or "text/plain")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index = FakeIndex(f"http://127.0.0.1:{server.server_port}/simple")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield index
    server.shutdown()
    thread.join()
    server.server_close()


def wheel(version: str, tag: str = "py3-none-any", **values: Any) -> dict[str, Any]:
    """A wheel's entry in a page."""
    return {"filename": f"toy_kit-{version}-{tag}.whl", "url": "x", "hashes": {}, **values}


def test_releases_have_dates_sizes_and_wheels(fake: FakeIndex) -> None:
    fake.has(
        "toy-kit",
        wheel("2.0", HERE, size=2000, **{"upload-time": "2026-02-03T10:00:00.5Z"}),
        wheel("2.0", "cp39-cp39-win_arm64", size=10, **{"upload-time": "2026-02-02T10:00:00Z"}),
        {"filename": "toy-kit-2.0.tar.gz", "size": 5},
        wheel("1.0", "cp39-cp39-win_arm64", size=1000, yanked="broken"),
        {"filename": "toy_kit-3.0-py3-none-any.whl", "size": 7, "requires-python": ">=9"},
        {"filename": "other-9.0.tar.gz"},
        {"filename": "toy_kit-what.whl"},
    )
    index = PackageIndex(IndexSettings((fake.address,)))
    result = index.releases("Toy_Kit")
    assert [*result] == [Version("1.0"), Version("2.0"), Version("3.0")]
    old, present, new = result.values()
    assert (old.yanked, old.date, old.wheels, old.pythons) == (True, "", (), "cp39")
    assert (present.yanked, present.date, present.size) == (False, "2026-02-02", 2000)
    assert [each.size for each in present.wheels] == [2000]
    assert not new.wheels, "it wants another Python"
    assert index.release("toy-kit", "2.0+cpu") is present
    assert index.release("toy-kit", "4") is None
    assert [path for path, _ in fake.asked] == ["/simple/toy-kit/"], "a page is read once"
    assert fake.asked[0][1]["Accept"].startswith(JSON)


def test_an_index_of_html_says_no_dates_and_no_sizes(fake: FakeIndex) -> None:
    page = (
        '<a href="../../files/toy_kit-1.0-py3-none-any.whl#sha256=1" data-requires-python="&gt;=3.8">w</a>'
        '<a href="toy_kit-1.1-py3-none-any.whl" data-yanked="">w</a><a name="x">no link</a>'
    )
    fake.pages["/simple/toy-kit/"] = HTML, page.encode()
    old, new = PackageIndex(IndexSettings((fake.address,))).releases("toy-kit").values()
    assert (old.date, old.size, old.yanked, len(old.wheels)) == ("", None, False, 1)
    assert new.yanked


def test_folders_and_several_indexes_are_read_together(fake: FakeIndex, tmp_path: Path) -> None:
    path = write_wheel(tmp_path / "links", "toy-kit", "1.0+cpu")
    write_wheel(tmp_path / "links", "other", "1.0")
    page = tmp_path / "simple" / "toy-kit" / "index.html"
    write_wheel(page.parent, "toy-kit", "3.0")
    page.write_text('<a href="toy_kit-3.0-py3-none-any.whl">w</a>')
    fake.has("toy-kit", wheel("1.0", size=9), wheel("2.0"))
    settings = IndexSettings((fake.address, (tmp_path / "simple").as_uri()), (str(path.parent), "/nowhere"))
    result = PackageIndex(settings).releases("toy-kit")
    assert [str(each) for each in result] == ["1.0", "2.0", "3.0"]
    assert {each.size for each in result[Version("1.0")].files} == {9, path.stat().st_size}
    assert result[Version("3.0")].size == (page.parent / "toy_kit-3.0-py3-none-any.whl").stat().st_size


def test_a_login_goes_into_a_header_and_into_no_message(fake: FakeIndex) -> None:
    address = fake.address.replace("http://", "http://ann:p%40ss@")
    with pytest.raises(Unavailable) as refused:
        PackageIndex(IndexSettings((address,))).releases("toy-kit")
    assert "ss@" not in str(refused.value)
    assert fake.asked[0][1]["Authorization"] == f"Basic {base64.b64encode(b'ann:p@ss').decode()}"


@pytest.mark.parametrize("content", [b"[1]", b"{", b'{"files": 3}', b'{"files": [3]}'])
def test_a_page_that_is_none_is_refused_in_one_line(fake: FakeIndex, content: bytes) -> None:
    fake.pages["/simple/toy-kit/"] = JSON, content
    with pytest.raises(Unavailable, match=r"releases of toy-kit cannot be listed .*check pip's index-url") as refused:
        PackageIndex(IndexSettings((fake.address,))).releases("toy-kit")
    assert "\n" not in str(refused.value)


def test_the_settings_are_those_of_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://one/simple\n[install]\nfind-links = a\n  b\n")
    assert (pip_settings().indexes[0], pip_settings().links) == ("https://one/simple", ("a", "b"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://two/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://three/simple file:///four")
    monkeypatch.setenv("PIP_CERT", "/x.pem")
    settings = pip_settings()
    assert settings.indexes == ("https://two/simple", "https://three/simple", "file:///four")
    assert settings.certificate == "/x.pem"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert pip_settings().indexes == ()
