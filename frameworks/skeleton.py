"""Creates a new adapter from the files of `frameworks/template`, or a training loop."""

import keyword
import re
from pathlib import Path

from frameworks.registry import find_adapters

_TEMPLATE = Path(__file__).with_name("template")
_OUTSIDE = ("pyproject.toml",)
_INSIDE = ("__init__.py", "adapter.py", "findings.toml")
_LOOP = Path(__file__).parent / "torch" / "template" / "my_training.py"
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def write_adapter(name: str, folder: Path) -> list[Path]:
    """Writes an adapter without capabilities, and returns its files.

    Nearly all tests of this adapter are `not offered`. The two tests that need no capability pass, and the test of the
    adapter's overhead abstains.

    Args:
        name: the adapter's name for `--framework` and records.
        folder: folder of the package, which is created unless it exists; it must be empty.

    Raises:
        ValueError: the name is invalid or taken, the folder is a file or not empty, or its parent is missing; the
            message is one line.
        OSError: a file cannot be written.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ValueError(f"name of an adapter: got {name!r}, want one such as my_framework")
    if name in find_adapters():
        raise ValueError(f"adapter {name!r} exists already; choose another name")
    _check_new(folder)
    package = f"{name}_conformance"
    sources = {folder / file: _TEMPLATE / file for file in _OUTSIDE}
    sources |= {folder / package / file: _TEMPLATE / file for file in _INSIDE}
    for path, source in sources.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_rename_template(source.read_text("utf-8"), name), encoding="utf-8")
    return list(sources)


def write_loop(folder: Path) -> Path:
    """Writes a training loop, and returns its file.

    Args:
        folder: folder of the loop, which is created unless it exists; it must be empty.

    Raises:
        ValueError: the folder is a file, is not empty, or its parent is missing; the message is one line.
        OSError: the file cannot be written.
    """
    path = folder / _LOOP.name
    if path.exists() or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"{path if folder.is_dir() else folder} exists already; choose another folder")
    _check_new(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(_LOOP.read_text("utf-8"), encoding="utf-8")
    return path


def _check_new(folder: Path) -> None:
    """Refuses a folder that is not empty, or whose parent does not exist."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty; choose a new folder")
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"{folder.absolute().parent} is not a folder; create it, or check the name")


def class_of(name: str) -> str:
    """The class name of an adapter, such as MyFrameworkAdapter for my_framework."""
    return "".join(part.capitalize() for part in name.split("_")) + "Adapter"


def import_path_of(name: str) -> str:
    """The import path, package.module:Class, of an adapter that was written under this name."""
    return f"{name}_conformance.adapter:{class_of(name)}"


def _rename_template(text: str, name: str) -> str:
    text = text.replace("TemplateAdapter", class_of(name)).replace("template-", f"{name.replace('_', '-')}-")
    return text.replace("template", name)
