"""The file of a bundle: a tar archive with the tracked files, wheels, hashes and a script, the same bytes each time."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from packaging.utils import parse_wheel_filename

from conformance.bundle.target import Target
from conformance.bundle.wheels import download
from conformance.runner.identity import COMMIT, ROOT, commit
from frameworks.adapter_file import adapter_file
from frameworks.installer.distributions import DISTRIBUTIONS, Unavailable
from frameworks.registry import built_in
from results.record.files import RecordError, os_problem

MTIME = 315532800
"""Time of every file, the first that a zip archive can have: 1980-01-01."""

_SCRIPT = Path(__file__).with_name("run.sh")


def pack(what: tuple[str, str], modes: Sequence[str], target: Target, output: Path | None, *, dirty: bool) -> Path:
    """Writes a bundle and returns where it is.

    Args:
        what: a built-in framework, and its version ("" for the pinned one).
        modes: those that `run.sh` judges; the adapter's default ones if empty.
        output: where to write, NAME.tar in the current folder if None.
        dirty: whether tracked files may differ from the commit; they are packed as they are.

    Raises:
        Unavailable: a wheel is not available.
        RecordError: the checkout cannot be packed, or the file cannot be written.
    """
    name, version = what
    if name not in built_in():
        raise Unavailable(f"no built-in framework {name!r}: one of {', '.join(built_in())}")
    chosen = DISTRIBUTIONS.get(name)
    if chosen is None and version:
        raise Unavailable(f"{name} is part of the suite and has no other version; write {name} alone")
    version = version or (chosen.pinned if chosen else "")
    head = commit(ROOT)
    if not head:
        raise RecordError(ROOT, "is no checkout of git", "pack a checkout, whose tracked files go into the bundle")
    if head.endswith("+") and not dirty:
        raise RecordError(ROOT, "has changed files", "commit them, or pack them as they are with --dirty")
    modes = modes or adapter_file(name).modes
    label = f"cu{target.cuda.replace('.', '')}" if target.cuda else "cpu"
    stem = "-".join(filter(None, ("conformance", name, version, f"py{target.python.replace('.', '')}", label)))
    output = output or Path(f"{stem}.tar")
    if output.exists() and not output.is_file():
        raise RecordError(output, "is not a regular file", "name another file")
    try:
        with tempfile.TemporaryDirectory(dir=output.absolute().parent, prefix=".bundle-") as folder:
            wheels = download(name, version, modes, target, Path(folder))
            files: dict[str, Path | bytes] = {f"suite/{path}": ROOT / path for path in _tracked()}
            files |= {f"wheels/{wheel.name}": wheel for wheel in wheels}
            files["requirements.txt"] = "".join(f"{_pin(wheel)}\n" for wheel in wheels).encode()
            files["run.sh"] = _script(name, version, modes, target)
            files[f"suite/{COMMIT}"] = f"{head}\n".encode()
            description = {"framework": name, "version": version, "modes": [*modes], "commit": head, **asdict(target)}
            files["bundle.json"] = f"{json.dumps(description, indent=1)}\n".encode()
            _write(output, stem, files, Path(folder, "bundle.tar"))
    except OSError as error:
        raise RecordError(output, f"cannot be written ({os_problem(error)})", "name another file") from None
    return output


def _pin(wheel: Path) -> str:
    name, version, *_ = parse_wheel_filename(wheel.name)
    return f"{name}=={version}"


def _tracked() -> Iterator[str]:
    """The tracked files that are there, sorted."""
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=True)
    yield from sorted(path for path in os.fsdecode(done.stdout).split("\0") if path and os.path.lexists(ROOT / path))


def _script(name: str, version: str, modes: Sequence[str], target: Target) -> bytes:
    values = {
        "NAME": name,
        "PYTHON": f"python{target.python}",
        "VERSION": target.python,
        "MODES": " ".join(modes) or "default",
        "STEM": "-".join(filter(None, (name, version))),
    }
    text = _SCRIPT.read_text("utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text.encode()


def _write(output: Path, stem: str, files: Mapping[str, Path | bytes], place: Path) -> None:
    sums = "".join(f"{_digest(content)}  {name}\n" for name, content in sorted(files.items()))
    with tarfile.open(place, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted({**files, "SHA256SUMS": sums.encode()}.items()):
            _add(archive, f"{stem}/{name}", content)
    os.replace(place, output)


def _digest(content: Path | bytes) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _add(archive: tarfile.TarFile, name: str, content: Path | bytes) -> None:
    """Adds a file without owner and time, and with one of two modes."""
    entry = tarfile.TarInfo(name)
    entry.mtime = MTIME
    if isinstance(content, bytes):
        entry.size, entry.mode = len(content), 0o755 if name.endswith(".sh") else 0o644
        archive.addfile(entry, io.BytesIO(content))
    elif content.is_symlink():
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, os.readlink(content), 0o777
        archive.addfile(entry)
    else:
        status = content.stat()
        entry.size, entry.mode = status.st_size, 0o755 if status.st_mode & 0o100 else 0o644
        with content.open("rb") as file:
            archive.addfile(entry, file)
