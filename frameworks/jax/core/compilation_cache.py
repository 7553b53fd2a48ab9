"""JAX's persistent compilation cache, shared by all processes.

JAX's key of a program is a hash of its operations, of the versions of JAX and XLA, of the devices and of XLA's flags.
It says neither which processor XLA generated code for nor which build of a version did, so the folder's name does.
"""

import hashlib
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import jax

from frameworks.cache_folder import PROGRAMS, cache_folder, prune

LARGEST = 2**30
"""Bytes that programs may take; beyond, those that were not used for longest go until half of it is left."""

_CPUINFO = Path("/proc/cpuinfo")
_SAID_OF_A_PROCESSOR = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")


def store_programs(device: jax.Device, largest: int = LARGEST) -> None:
    """Makes JAX store what it compiles for a processor in the cache folder, and take from there what it has compiled.

    A folder that JAX's own settings name stays, and where the cache folder cannot be written nothing is stored.
    """
    _count_uses()
    if device.platform != "cpu" or jax.config.jax_compilation_cache_dir is not None:
        return
    root = cache_folder() / "jax"
    try:
        folder = root / f"{processor()}-{build(libraries(), root / 'builds')}"
        folder.mkdir(parents=True, exist_ok=True)
        prune(root, largest)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def processor(listing: Path = _CPUINFO) -> str:
    """A name for all that XLA's code generator may ask of this processor."""
    lines = listing.read_text("utf-8", errors="replace").splitlines() if listing.is_file() else []
    said = {line for line in lines if line.partition(":")[0].strip() in _SAID_OF_A_PROCESSOR}
    described = "\n".join([platform.machine(), platform.processor(), *sorted(said)])
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def libraries() -> list[Path]:
    """The shared objects of jaxlib, the compiler among them."""
    result = find_spec("jaxlib")
    folders = [] if result is None else result.submodule_search_locations or []
    paths = [path for folder in folders for path in Path(folder).rglob("*")]
    return sorted(path for path in paths if path.suffix in (".so", ".dylib", ".pyd"))


def build(paths: Sequence[Path], known: Path) -> str:
    """A name for what these files contain.

    Args:
        known: folder of digests by the file's path, size and time of change, for the compiler has 350 MB.

    Raises:
        OSError: a file cannot be read, or the folder cannot be written.
    """
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        described = f"{path} {status.st_size} {status.st_mtime_ns} {status.st_ino}"
        entry = known / hashlib.sha256(described.encode()).hexdigest()[:32]
        with suppress(OSError):
            content = entry.read_text("ascii")
            if len(content) == hashlib.sha256().digest_size * 2:
                digest.update(content.encode())
                continue
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        known.mkdir(parents=True, exist_ok=True)
        entry.write_text(content, "ascii")
        digest.update(content.encode())
    return digest.hexdigest()[:16]


@cache
def _count_uses() -> None:
    """Counts from now on which programs JAX asks its cache for and which it gets."""

    def count(event: str, **_: object) -> None:
        PROGRAMS.asked += event == "/jax/compilation_cache/compile_requests_use_cache"
        PROGRAMS.hits += event == "/jax/compilation_cache/cache_hits"

    jax.monitoring.register_event_listener(count)
