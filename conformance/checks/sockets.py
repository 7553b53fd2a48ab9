"""The addresses on which processes listen, read from Linux's /proc."""

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
"""Seconds between two scans for listening sockets."""

_PROC = Path("/proc")
_LISTENING = "0A"
"""State of a listening socket in the tables of the kernel."""


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket and a process that has it open."""

    pid: int
    address: str
    port: int

    @property
    def inside(self) -> bool:
        """True if other machines cannot reach it."""
        address = IPv6Address(self.address) if ":" in self.address else IPv4Address(self.address)
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback


@contextmanager
def listeners_below(pid: int) -> Iterator[set[Listener]]:
    """Collect the sockets on which a process and its descendants listen until the context ends; none without /proc."""
    collected: set[Listener] = set()
    stop = Event()

    def watch() -> None:
        while not stop.wait(PAUSE_S):
            collected.update(_listeners_now(pid))

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield collected
    finally:
        stop.set()
        thread.join()
        collected.update(_listeners_now(pid))


def _listeners_now(pid: int) -> set[Listener]:
    """Return the sockets on which a process and its descendants listen now."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            parent = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1]
            children[int(parent)].append(int(folder.name))
    result: set[Listener] = set()
    pending = [pid]
    while pending:
        process = pending.pop()
        result |= listeners(process)
        pending += children[process]
    return result


def listeners(pid: int) -> set[Listener]:
    """Return the sockets on which one process listens now; none if it has ended."""
    inodes: set[str] = set()
    with suppress(OSError):  # the process may end at any time
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
    """Yield address, port and inode of each listening socket in a table of a network namespace."""
    with suppress(OSError):
        for line in file.read_text("ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING:
                address, _, port = fields[1].partition(":")
                yield _address(address), int(port, 16), fields[9]


def _address(digits: str) -> str:
    """Return an address that the kernel shows as four-byte numbers in the machine's byte order."""
    numbers = (int(digits[at : at + 8], 16) for at in range(0, len(digits), 8))
    packed = b"".join(struct.pack("=I", number) for number in numbers)
    return str(IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed))
