"""Releases of a package on the indexes of pip: versions, dates, files and their sizes.

An index is read by its simple API: JSON (PEP 691, with the sizes and upload times of PEP 700), or HTML (PEP 503), which
has neither. Which indexes there are, and the certificate to trust, is read from `pip config list`.
"""

from __future__ import annotations

import ast
import base64
import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, sys_tags
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from frameworks.installer.distributions import Unavailable
from frameworks.installer.request import redacted

DEFAULT = "https://pypi.org/simple"
"""pip's index where nothing else is set."""

LIMIT_S = 60.0
MAX_PAGE = 256 * 2**20
"""Most bytes of an index page that are read."""

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_JSON = "application/vnd.pypi.simple.v1+json"
_HTML = "text/html"


@dataclass(frozen=True)
class ReleaseFile:
    """One file of a release.

    Attributes:
        size: in bytes, None where the index does not say.
        uploaded: ISO 8601 time, "" where the index does not say.
        python: the versions of Python that it declares, "" for all.
        yanked: whether it was withdrawn.
        tags: of a wheel; none for a source archive.
    """

    size: int | None = None
    uploaded: str = ""
    python: str = ""
    yanked: bool = False
    tags: frozenset[Tag] = frozenset()

    @property
    def fits(self) -> bool:
        """Whether it is a wheel for this Python and platform."""
        return bool(self.tags & _here()) and _admits(self.python)


@dataclass(frozen=True)
class Release:
    """The files of one public version of a package on all indexes."""

    files: tuple[ReleaseFile, ...]

    @property
    def date(self) -> str:
        """The day of the first upload, YYYY-MM-DD; "" where no index says."""
        return min((each.uploaded[:10] for each in self.files if each.uploaded), default="")

    @property
    def yanked(self) -> bool:
        """Whether every file was withdrawn."""
        return all(each.yanked for each in self.files)

    @property
    def wheels(self) -> tuple[ReleaseFile, ...]:
        """The wheels for this Python and platform."""
        return tuple(each for each in self.files if each.fits)

    @property
    def size(self) -> int | None:
        """Bytes of the smallest wheel that fits, or of the smallest source archive; None where unknown."""
        sizes = [each.size for each in self.wheels or self.files if each.size is not None]
        return min(sizes, default=None)

    @property
    def pythons(self) -> str:
        """What the wheels are for, such as "cp39, cp310"; "" without any."""
        names = {tag.interpreter for each in self.files for tag in each.tags}
        return ", ".join(sorted(names, key=lambda name: (len(name), name)))


@dataclass(frozen=True)
class IndexSettings:
    """pip's settings about indexes.

    Attributes:
        indexes: addresses of simple APIs, the main one first.
        links: folders, files and pages of `--find-links`.
        certificate: file of certificates to trust, "" for the system's.
    """

    indexes: tuple[str, ...] = (DEFAULT,)
    links: tuple[str, ...] = ()
    certificate: str = ""


def pip_settings() -> IndexSettings:
    """The settings of this environment's pip, from its files and PIP_* variables."""
    words = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    by_section: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}  # the later ones count
    for line in done.stdout.splitlines():
        key, _, text = line.partition("=")
        section, _, option = key.rpartition(".")
        if section in by_section:
            by_section[section][option] = str(ast.literal_eval(text))
    values = {option: text for options in by_section.values() for option, text in options.items()}
    offline = values.get("no-index", "").lower() in ("1", "true", "yes", "on")
    main = [] if offline else [values.get("index-url", DEFAULT)]
    extra = values.get("extra-index-url", "").split() if main else []
    return IndexSettings((*main, *extra), tuple(values.get("find-links", "").split()), values.get("cert", ""))


@dataclass
class PackageIndex:
    """All indexes together; each page is read once.

    Args:
        settings: by default those of pip here.
    """

    settings: IndexSettings = field(default_factory=pip_settings)
    _known: dict[str, dict[Version, Release]] = field(default_factory=dict)

    def releases(self, package: str) -> dict[Version, Release]:
        """The releases of a package by public version, oldest first.

        Raises:
            Unavailable: no index can be read, or none has the package.
        """
        name = str(canonicalize_name(package))
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def release(self, package: str, version: str) -> Release | None:
        """One release; None if no index has it.

        Raises:
            Unavailable: as `releases`.
        """
        return self.releases(package).get(Version(Version(version).public))

    def _read(self, name: str) -> dict[Version, Release]:
        files: dict[Version, list[ReleaseFile]] = {}
        problems, answered = [], False
        places = [(f"{index.rstrip('/')}/{name}/", True) for index in self.settings.indexes]
        for place, must in [*places, *((link, False) for link in self.settings.links)]:
            try:
                listed = _listed(place, self.settings.certificate)
                answered = True
            except urllib.error.HTTPError as error:
                answered = answered or error.code == 404
                if error.code != 404:
                    problems.append(f"{place} answers {error.code}")
                continue
            except (OSError, ValueError) as error:
                if must and not (place.startswith("file:") and _missing(error)):
                    problems.append(f"{place}: {getattr(error, 'reason', error)}")
                continue
            for version, file in _files(name, listed):
                files.setdefault(Version(version.public), []).append(file)
        if not files:
            problem = "; ".join(problems) or "no index has it"
            raise Unavailable(redacted(f"releases of {name} cannot be listed ({problem}); check pip's index-url"))
        return {version: Release(tuple(files[version])) for version in sorted(files)}


def _missing(error: Exception) -> bool:
    reason = getattr(error, "reason", error)
    return isinstance(reason, FileNotFoundError) or "No such file" in str(reason)


@cache
def _here() -> frozenset[Tag]:
    return frozenset(sys_tags())


def _admits(python: str) -> bool:
    try:
        return SpecifierSet(python).contains(".".join(map(str, sys.version_info[:3])))
    except InvalidSpecifier:
        return True


def _listed(place: str, certificate: str) -> list[Mapping[str, Any]]:
    """The files of a page as PEP 691 has them; of a folder, its files with their sizes.

    Raises:
        OSError: it cannot be read. ValueError: it is no such page.
    """
    scheme = urlsplit(place).scheme
    local = Path(unquote(urlsplit(place).path)) if scheme == "file" else Path(place) if "://" not in place else None
    if local is not None:
        return _local(local)
    request, context = _request(place), None
    if certificate and place.startswith("https:"):
        context = ssl.create_default_context(cafile=certificate)
    with urllib.request.urlopen(request, timeout=LIMIT_S, context=context) as answer:
        content = answer.read(MAX_PAGE + 1)
        kind = answer.headers.get_content_type()
    if len(content) > MAX_PAGE:
        raise ValueError(f"is larger than {MAX_PAGE >> 20} MiB")
    return _page(content, kind, place)


def _page(content: bytes, kind: str, place: str) -> list[Mapping[str, Any]]:
    if kind == _JSON:
        document = json.loads(content)
        files = document.get("files") if isinstance(document, dict) else None
        if not isinstance(files, list) or not all(isinstance(each, dict) for each in files):
            raise ValueError("is no page of a package index")
        return files
    links = _Links(place)
    links.feed(content.decode("utf-8", "replace"))
    return links.files


def _local(path: Path) -> list[Mapping[str, Any]]:
    """The files of a folder, or of its index.html."""
    page = path / "index.html" if path.is_dir() else path
    if page.is_file() and page.suffix == ".html":
        listed = _page(page.read_bytes(), _HTML, page.as_uri())
    else:
        listed = [{"filename": each.name, "url": each.as_uri()} for each in sorted(path.iterdir())]
    return [_measured(each) for each in listed]


def _measured(listed: Mapping[str, Any]) -> Mapping[str, Any]:
    place = urlsplit(str(listed.get("url", "")))
    try:
        return {**listed, "size": Path(unquote(place.path)).stat().st_size} if place.scheme == "file" else listed
    except OSError:
        return listed


def _request(place: str) -> urllib.request.Request:
    """A request, with the login of the address, if it has one, in a header."""
    parts = urlsplit(place)
    login, at, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(urlunsplit(parts._replace(netloc=host)), headers={"Accept": _ACCEPT})
    if at:
        token = base64.b64encode(unquote(login).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    return request


class _Links(HTMLParser):
    """The links of a page of PEP 503."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = place
        self.files: list[Mapping[str, Any]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Takes an anchor's address and its attributes."""
        given = dict(attrs)
        if tag == "a" and (link := given.get("href")):
            url = urljoin(self._place, link)
            name = unquote(urlsplit(url).path).rpartition("/")[2]
            yanked = "data-yanked" in given
            python = given.get("data-requires-python") or ""
            self.files.append({"filename": name, "url": url, "yanked": yanked, "requires-python": python})


def _files(name: str, listed: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Version, ReleaseFile]]:
    for each in listed:
        file = str(each.get("filename", ""))
        try:
            if file.endswith(".whl"):
                project, version, _, tags = parse_wheel_filename(file)
            else:
                project, version = parse_sdist_filename(file)
                tags = frozenset()
        except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
            continue
        if project == name:
            size, uploaded = each.get("size"), each.get("upload-time")
            release_file = ReleaseFile(
                size if isinstance(size, int) and not isinstance(size, bool) else None,
                uploaded if isinstance(uploaded, str) else "",
                str(each.get("requires-python") or ""),
                bool(each.get("yanked", False)),
                tags,
            )
            yield version, release_file
