"""Small wheels, and environment variables by which pip and uv install from a folder of them alone."""

import json
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from zipfile import ZipFile

import pytest

from conformance.sweep import plan

TOY = "tests.support.toy:ToyFramework"
PACKAGE = "conformance-toy"


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    source: str | None = None,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
) -> Path:
    """Writes a wheel of one module, which has VERSION unless `source` is given."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    path, info = folder / f"{module}-{version}-{tag}.whl", f"{module}-{version}.dist-info"
    requirements = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    files = {
        f"{module}.py": f"VERSION = {version!r}\n" if source is None else source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirements}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    with ZipFile(path, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"]))
    return path


def offline(folder: Path) -> dict[str, str]:
    """Variables that limit pip and uv to this folder."""
    return {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "UV_NO_INDEX": "1",
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": str(folder),
    }


@contextmanager
def only_index(folder: Path, *versions: str) -> Iterator[None]:
    """Makes wheels of the toy's versions the only releases that pip and uv know."""
    for version in versions:
        write_wheel(folder, PACKAGE, version)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**offline(folder), "CONFORMANCE_SUITE_PACKAGES": site_packages()}.items():
            patch.setenv(name, value)
        for function in (plan.releases, plan._settings_of_pip):
            function.cache_clear()
        yield


@contextmanager
def serve_index(folder: Path, packages: Mapping[str, Sequence[Mapping[str, object]]]) -> Iterator[str]:
    """The address of an index with these files of each package, whose wheels are in the package's folder."""

    class Handler(SimpleHTTPRequestHandler):
        extensions_map = {".json": "application/vnd.pypi.simple.v1+json"}  # noqa: RUF012

        def do_GET(self) -> None:
            self.path += "index.json" if self.path.endswith("/") else ""
            super().do_GET()

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    for package, entries in packages.items():
        files = [{"url": entry["filename"], "hashes": {}, **entry} for entry in entries]
        page = {"meta": {"api-version": "1.1"}, "name": package, "files": files}
        (folder / package).mkdir(parents=True, exist_ok=True)
        (folder / package / "index.json").write_text(json.dumps(page))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def site_packages() -> str:
    """The site-packages of this environment, on which environments of toys are built."""
    return sysconfig.get_path("purelib")
