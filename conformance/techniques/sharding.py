"""Meshes of ranks, unequal splits of a batch, state that all ranks share, and addresses on which processes listen."""

import os
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from threading import Event, Thread

import pytest

from conformance.checks.evidence import difference
from conformance.checks.subject import Subject
from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Ranks, Recipe
from frameworks.contract import Capability, RankGroup, Trainer

PAIRS: Mapping[str, Ranks] = {
    "replicated": Ranks(2),
    "optimizer": Ranks(2, "optimizer"),
    "gradients": Ranks(2, "gradients"),
    "full": Ranks(2, "full"),
}
"""Meshes of two ranks, from replicated to fully sharded."""

FOURS = (Ranks(4), *(Ranks(4, "full", replicas=n) for n in (1, 2, 4)), Ranks(4, "gradients", replicas=2))
"""Meshes of four ranks, including hybrid meshes of all shapes."""

LEVEL = pytest.mark.parametrize("ranks", PAIRS.values(), ids=PAIRS)


RANK = pytest.mark.parametrize("rank", [0, 1], ids=["rank-0", "rank-1"])


def select_meshes(subject: Subject, meshes: Sequence[Ranks]) -> list[Ranks]:
    """Return the meshes that the framework declares."""
    there = subject.framework.declares
    return [ranks for ranks in meshes if all(there(c).supported for c in Capability.of_ranks(ranks))]


def split_across_ranks(batch: Batch, *sizes: int) -> list[Window]:
    """Return a window of one micro-batch for each rank: consecutive parts of these sizes."""
    return [(part,) for part in batch.split(*sizes)]


def windows_of(*windows: Sequence[Window]) -> list[Window]:
    """Return a window for each rank that joins its micro-batches in all of these windows."""
    return [tuple(batch for window in own for batch in window) for own in zip(*windows, strict=True)]


def make_single_run(
    subject: Subject, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None
) -> Trainer:
    """Return a run without ranks, whatever the mode."""
    return subject.framework.trainer(model, recipe.replace(ranks=None, seed=recipe.seed + subject.seed), weights)


def list_by_rank(
    ranks: Ranks, rank: int, own: Mapping[str, Array], others: Mapping[str, Array]
) -> list[Mapping[str, Array]]:
    """Return arguments by rank: one rank gets its own, all others the same."""
    return [own if index == rank else others for index in range(ranks.count)]


def weights(state: Mapping[str, Array]) -> dict[str, Array]:
    """Return the model's weights in a state, by parameter name."""
    return {name.removeprefix("parameter/"): value for name, value in state.items() if name.startswith("parameter/")}


OWN = ("random/", "buffer/", "accumulator/")
"""Prefixes of state that may differ between ranks."""


def apart(rank_group: RankGroup) -> str:
    """Return how the first rank that differs from rank 0 does so, in words; "" if all agree."""
    shared = [{name: v for name, v in state.items() if not name.startswith(OWN)} for state in rank_group.states()]
    for rank, state in enumerate(shared[1:], 1):
        if differs := difference(state, shared[0]):
            return f"rank {rank} differs from rank 0: {differs}"
    return ""


PAUSE_S = 0.005
"""Seconds between two scans for listening sockets."""

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
        """True if other machines cannot reach it."""
        address = IPv6Address(self.address) if ":" in self.address else IPv4Address(self.address)
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback


@contextmanager
def listeners_below(pid: int) -> Iterator[set[Listener]]:
    """Collect the sockets on which a process and its descendants listen until the context ends; none without /proc."""
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
