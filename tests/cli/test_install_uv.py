"""uv itself on an index of this machine: companions of a version's time."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from zipfile import ZipFile

import pytest

from frameworks.installer import install, uv

FILES = {
    "frame": {"1.0": "2026-01-01", "2.0": "2026-03-01"},
    "mate": {"1.0": "2026-02-01", "2.0": "2026-04-01", "3.0": "2026-05-01"},
    "numpy": {"1.0": "2025-01-01", "2.0": "2026-05-01"},
}
DECLARED = {"frame": ["numpy>=1", "mate"], "mate": [], "numpy": []}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An index of small wheels, with the day of each one's upload, as the only one that uv knows."""

    class Handler(SimpleHTTPRequestHandler):
        extensions_map = {".json": "application/vnd.pypi.simple.v1+json"}  # noqa: RUF012

        def do_GET(self) -> None:
            self.path += "index.json" if self.path.endswith("/") else ""
            super().do_GET()

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    for package, uploads in FILES.items():
        folder = tmp_path / "index" / package
        folder.mkdir(parents=True)
        files = []
        for version, day in uploads.items():
            name = f"{package}-{version}-py3-none-any.whl"
            declared = "".join(f"Requires-Dist: {each}\n" for each in DECLARED[package])
            info = f"{package}-{version}.dist-info"
            with ZipFile(folder / name, "w") as wheel:
                wheel.writestr(
                    f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n{declared}"
                )
                wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                wheel.writestr(f"{info}/RECORD", "")
            files.append({"filename": name, "url": name, "hashes": {}, "upload-time": f"{day}T00:00:00Z"})
        page = {"meta": {"api-version": "1.1"}, "name": package, "files": files}
        (folder / "index.json").write_text(json.dumps(page))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "index")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.skipif(uv.program() is None, reason="uv is not installed")
@pytest.mark.usefixtures("index")
def test_uv_finds_companions_of_a_time_and_keeps_what_the_suite_computes_with() -> None:
    result = partial(uv.of_its_time, "frame", "1.0")
    assert result(["frame==1.0"], {}, {"numpy": "2.0"}) == {"frame": "1.0", "mate": "1.0", "numpy": "2.0"}
    assert result(["frame==1.0"], {"mate": "2.0"}, {}) == {"frame": "1.0", "mate": "2.0", "numpy": "1.0"}
    assert result(["frame==1.0", "numpy<2"], {}, {"numpy": "2.0"})["numpy"] == "1.0"
    newest = uv.of_its_time("frame", "2.0", ["frame==2.0"], {}, {})
    assert newest == {"frame": "2.0", "mate": "3.0", "numpy": "2.0"}
    with pytest.raises(install.Unavailable, match=re.compile(r"mate", re.DOTALL)):
        result(["frame==1.0", "mate==9"], {}, {})
