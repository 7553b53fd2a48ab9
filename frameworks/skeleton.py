"""Writes a new adapter: the files of `frameworks/template`, in a package of its own, under a name of its own."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from frameworks.registry import known

_TEMPLATE = Path(__file__).with_name("template")
_OUTSIDE = ("pyproject.toml",)
_INSIDE = ("__init__.py", "adapter.py", "expectations.toml")
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def write_adapter(name: str, folder: Path) -> list[Path]:
    """Writes an adapter that offers nothing yet, and returns its files.

    Nearly every test of it is `not offered`: two that look only at the suite pass, and the test of the adapter's
    overhead abstains.

    Args:
        name: what `--framework` and records call it.
        folder: of the package; it is made, and has to be empty if it is there.

    Raises:
        ValueError: the name cannot be taken, or the folder is not empty; the message is one line.
        OSError: a file cannot be written.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ValueError(f"{name!r} is no name of an adapter: write one such as my_framework")
    if name in known():
        raise ValueError(f"there is an adapter {name!r} already; choose another name")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there and not empty; name a new folder")
    package = f"{name}_conformance"
    sources = {folder / file: _TEMPLATE / file for file in _OUTSIDE}
    sources |= {folder / package / file: _TEMPLATE / file for file in _INSIDE}
    for path, source in sources.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_renamed(source.read_text("utf-8"), name), encoding="utf-8")
    return list(sources)


def class_of(name: str) -> str:
    """The name of an adapter's class: MyFrameworkAdapter for my_framework."""
    return "".join(part.capitalize() for part in name.split("_")) + "Adapter"


def import_path_of(name: str) -> str:
    """The import path, package.module:Class, of an adapter that was written under this name."""
    return f"{name}_conformance.adapter:{class_of(name)}"


def _renamed(text: str, name: str) -> str:
    text = text.replace("TemplateAdapter", class_of(name)).replace("template-", f"{name.replace('_', '-')}-")
    return text.replace("template", name)
