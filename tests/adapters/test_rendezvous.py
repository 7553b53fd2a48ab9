"""Where Paddle's ranks meet: a store that speaks as Paddle's own does, on the loopback, as long as it is wanted."""

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.suite_runs import hang_limit, wait_for

STORE = Path(__file__).parents[2] / "frameworks" / "paddle" / "distributed" / "rendezvous.py"
ADD, GET, CHECK, SET, WAIT = range(5)
IS_THERE, READY, NOT_READY = 1, 2, 3


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    file = tmp_path / "port"
    words = [sys.executable, "-I", "-S", str(STORE), str(file)]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as server:
        wait_for(file.exists)
        yield server, int(file.read_text("utf-8"))


def client(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=hang_limit())


def ask(rank: socket.socket, command: int, key: str, value: bytes = b"") -> None:
    rank.sendall(struct.pack("=iQ", command, len(key)) + key.encode() + value)


def answer(rank: socket.socket, form: str) -> int:
    number: int = struct.unpack(form, rank.recv(struct.calcsize(form), socket.MSG_WAITALL))[0]
    return number


def test_ranks_count_themselves_and_find_what_others_have_told(store: tuple[subprocess.Popen[bytes], int]) -> None:
    with client(store[1]) as first, client(store[1]) as second:
        for rank, count in ((first, 1), (second, 2)):
            ask(rank, ADD, "/init/", struct.pack("=q", 1))
            assert answer(rank, "=q") == count
        ask(second, CHECK, "/address")
        assert answer(second, "=i") == NOT_READY
        ask(second, WAIT, "/address")
        ask(first, SET, "/address", struct.pack("=Q", 3) + b"\x00ab")
        assert answer(second, "=i") == IS_THERE
        ask(second, CHECK, "/address")
        assert answer(second, "=i") == READY
        ask(second, GET, "/address")
        assert second.recv(answer(second, "=Q"), socket.MSG_WAITALL) == b"\x00ab"
        ask(second, GET, "/init/")
        assert second.recv(answer(second, "=Q"), socket.MSG_WAITALL) == b"2"


def test_it_ends_with_whoever_started_it(store: tuple[subprocess.Popen[bytes], int]) -> None:
    server, port = store
    with client(port) as rank:
        ask(rank, WAIT, "/never")
        assert server.stdin is not None
        server.stdin.close()
        assert server.wait(hang_limit()) == 0
    with pytest.raises(ConnectionRefusedError):
        client(port)
