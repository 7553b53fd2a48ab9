"""Addresses on which a process and its descendants listen, from Linux's /proc."""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from threading import Event, Thread

PAUSE_S = 0.005
"""Seconds between two looks."""

_PROC = Path("/proc")
_LISTENING = "0A"


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket and a process that has it open."""

    pid: int
    address: str
    port: int

    @property
    def inside(self) -> bool:
        """Whether other machines cannot reach it."""
        address = IPv6Address(self.address) if ":" in self.address else IPv4Address(self.address)
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback


@contextmanager
def listeners_below(pid: int) -> Iterator[set[Listener]]:
    """Collects what a process and its descendants listen on until the context ends; empty without /proc."""
    listeners: set[Listener] = set()
    over = Event()

    def look() -> None:
        while not over.wait(PAUSE_S):
            listeners.update(_below(pid))

    thread = Thread(target=look, daemon=True)
    thread.start()
    try:
        yield listeners
    finally:
        over.set()
        thread.join()
        listeners.update(_below(pid))


def listeners(pid: int) -> set[Listener]:
    """What one process listens on now; nothing if it has ended."""
    inodes: set[str] = set()
    with suppress(OSError):
        for name in os.listdir(_PROC / str(pid) / "fd"):
            with suppress(OSError):
                inodes.add(os.readlink(_PROC / str(pid) / "fd" / name))
    return {
        Listener(pid, address, port)
        for table in ("tcp", "tcp6")
        for address, port, inode in _table(_PROC / str(pid) / "net" / table)
        if f"socket:[{inode}]" in inodes
    }


def _table(file: Path) -> Iterator[tuple[str, int, str]]:
    """Address, port and inode of each socket in a network namespace that listens."""
    with suppress(OSError):
        for line in file.read_text("ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING:
                address, _, port = fields[1].partition(":")
                yield _address(address), int(port, 16), fields[9]


def _address(words: str) -> str:
    """The kernel shows an address as numbers of four bytes, in the order of the machine's bytes."""
    numbers = (int(words[at : at + 8], 16) for at in range(0, len(words), 8))
    packed = b"".join(struct.pack("=I", number) for number in numbers)
    return str(IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed))


def _below(pid: int) -> set[Listener]:
    children: defaultdict[int, list[int]] = defaultdict(list)
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            parent = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1]
            children[int(parent)].append(int(folder.name))
    result: set[Listener] = set()
    left = [pid]
    while left:
        own = left.pop()
        result |= listeners(own)
        left += children[own]
    return result
