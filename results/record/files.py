"""Atomic replacement of files, bounded reading, errors in one line."""

import contextlib
import gzip
import os
import stat
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePath

MAX_BYTES = 32 * 2**20
"""Largest file that is read as a record or a journal."""

COMPRESSED = ".gz"
"""Suffix of compressed files; committed records are NAME.json.gz."""


class RecordError(Exception):
    """A record or journal cannot be read or written; the message is one line, names the file and says what to do."""

    def __init__(self, path: Path | str, problem: str, remedy: str) -> None:
        super().__init__(one_line(f"{path}: {problem}; {remedy}"))


class RecordBusy(RecordError):
    """Another run is writing to the same record."""


def one_line(text: str, limit: int = 500) -> str:
    """`text` without control characters and line breaks, cut to `limit` characters."""
    clean = printable(text[: 2 * limit], " ")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def printable(text: str, substitute: str, allowed: str = "") -> str:
    """Return `text` with all characters that terminals or pages act on replaced, except those in `allowed`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in allowed else substitute for one in text)


def os_problem(error: OSError) -> str:
    """Return the operating system's message, such as "no space left on device"."""
    return (error.strerror or type(error).__name__).lower()


def read(path: Path) -> bytes:
    """Return the content of a regular file of at most `MAX_BYTES`; a file NAME.gz is decompressed.

    Raises:
        RecordError: it is missing, no regular file, unreadable, too large or not gzip's.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise RecordError(path, "is not a regular file", "name another file")
        with gzip.open(path) if path.suffix == COMPRESSED else path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        problem = one_line(str(error)) or "it is cut short"
        raise RecordError(path, f"is not compressed by gzip ({problem})", "restore it, or name another file") from None
    except OSError as error:
        raise RecordError(path, f"cannot be read ({os_problem(error)})", "check the name and its permissions") from None
    except ValueError:
        raise RecordError(path, "is not a file name", "name another file") from None
    if len(content) > MAX_BYTES:
        raise RecordError(path, f"is larger than {MAX_BYTES >> 20} MiB", "name another file")
    return content


def compress_content(path: Path, content: bytes) -> bytes:
    """Return the bytes to write to `path`: reproducibly compressed for NAME.gz, else `content`."""
    if path.suffix != COMPRESSED:
        return content
    packing = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
    return packing.compress(content) + packing.flush()


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file below a folder; its name comes from a record or a plan, so it is not trusted.

    Raises:
        RecordError: the name leads out of the folder.
    """
    if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise RecordError(folder, f"has no room for {name!r}, which leads out of it", "correct the names in the input")
    return folder / name


def replace(path: Path, content: bytes) -> None:
    """Replaces the content of `path` atomically.

    If `path` is a link, its target is replaced. A device, a FIFO and this process's own output are written to.

    Raises:
        RecordError: the disk is full, the folder cannot be written to, ...; the old content stays.
    """
    replace_by(path, [content])


def replace_by(path: Path, pieces: Iterable[bytes]) -> None:
    """Replace the content of `path` as `replace` does, by pieces; the old content stays if a piece raises an error."""
    if not path.name:
        raise RecordError(path, "is not a file name", "name a file")
    try:
        stream = _stream(path)
        if stream is None:
            _replace_file(Path(os.path.realpath(path)), pieces)
        else:
            with open(stream, "wb") as file:
                file.writelines(pieces)
    except OSError as error:
        raise unwritable(path, error) from None


def _stream(path: Path) -> int | None:
    """Return a descriptor if `path` is a stream, which can be written to but not replaced, else None.

    Raises:
        RecordError: neither a stream nor a file is there.
    """
    try:
        target = os.stat(path)
    except FileNotFoundError:
        return None
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(target, os.fstat(descriptor)):
                return os.dup(descriptor)
    if stat.S_ISCHR(target.st_mode) or stat.S_ISFIFO(target.st_mode):
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    if not stat.S_ISREG(target.st_mode):
        raise RecordError(path, "is not a file", "name another one")
    return None


def _replace_file(path: Path, pieces: Iterable[bytes]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        with open(descriptor, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def remove_leftovers(path: Path) -> None:
    """Removes temporary files of killed writers of `path`; the caller must hold the lock."""
    for entry in path.parent.iterdir():
        if entry.name.startswith(f".{path.name}.") and entry.name.endswith(".tmp"):
            entry.unlink(missing_ok=True)


def unwritable(path: Path, error: OSError) -> RecordError:
    """The error to raise when `path` could not be written."""
    return RecordError(
        path, f"cannot be written ({os_problem(error)})", "make room or choose another folder, then run again"
    )
