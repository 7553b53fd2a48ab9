"""The rendezvous of Paddle's ranks: a loopback server that speaks the protocol of Paddle's `TCPStore`.

Paddle's own server listens on every interface, at a port that is agreed on before, as long as the ranks live. This
server listens on 127.0.0.1 only, at a free port from the system, which it writes into the ranks' folder. It ends as
soon as every rank has joined.
"""

import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import IntEnum
from pathlib import Path
from typing import cast

_PORT = "port"
_LOOK_S = 0.01
_NUMBER, _SIZE, _COUNT = struct.Struct("=i"), struct.Struct("=Q"), struct.Struct("=q")


class _Asked(IntEnum):
    """Commands of `TCPStore` with their numbers in tcp_store.h; a key follows each command."""

    ADD, GET, CHECK, SET, WAIT = range(5)


class _Answer(IntEnum):
    """Replies of `TCPStore` to CHECK and WAIT."""

    IS_THERE, READY, NOT_READY = 1, 2, 3


class _Client(socketserver.StreamRequestHandler):
    """One rank's connection."""

    disable_nagle_algorithm = True

    def handle(self) -> None:
        store = cast(_Store, self.server)
        while number := self.rfile.read(_NUMBER.size):
            asked, key = _Asked(*_NUMBER.unpack(number)), self._bytes()
            match asked:
                case _Asked.ADD:
                    self.wfile.write(_COUNT.pack(store.add(key, *_COUNT.unpack(self.rfile.read(_COUNT.size)))))
                case _Asked.GET:
                    value = store.wait(key)
                    self.wfile.write(_SIZE.pack(len(value)) + value)
                case _Asked.CHECK:
                    self.wfile.write(_NUMBER.pack(_Answer.READY if key in store.values else _Answer.NOT_READY))
                case _Asked.SET:
                    store.set(key, self._bytes())
                case _Asked.WAIT:
                    store.wait(key)
                    self.wfile.write(_NUMBER.pack(_Answer.IS_THERE))

    def _bytes(self) -> bytes:
        return self.rfile.read(*_SIZE.unpack(self.rfile.read(_SIZE.size)))


class _Store(socketserver.ThreadingTCPServer):
    """The store's values, by key."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.values: dict[bytes, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: bytes, value: bytes) -> None:
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def add(self, key: bytes, count: int) -> int:
        """Adds to a number, which is stored as decimal digits; returns the sum."""
        with self._changed:
            total = int(self.values.get(key, b"0")) + count
            self.set(key, str(total).encode())
        return total

    def wait(self, key: bytes) -> bytes:
        """The value, once there is one."""
        with self._changed:
            self._changed.wait_for(lambda: key in self.values)
            return self.values[key]


@contextmanager
def store(folder: Path, *, serves: bool) -> Iterator[str]:
    """The rendezvous store of the ranks that share a folder, as HOST:PORT.

    Args:
        serves: this rank starts the store; exactly one rank does. The store is a separate process, because Paddle's
            client keeps the interpreter's lock while it waits for an answer.

    Raises:
        RuntimeError: the store did not start.
    """
    file = folder / _PORT
    with _server(file) if serves else nullcontext() as server:
        while not file.exists():
            if server is not None and server.poll() is not None:
                raise RuntimeError(f"the ranks' store ended with exit status {server.returncode}")
            time.sleep(_LOOK_S)
        yield f"127.0.0.1:{file.read_text(encoding='utf-8')}"


@contextmanager
def _server(file: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-I", "-S", __file__, str(file)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE
    ) as server:  # leaving the context closes its input and waits for its end
        yield server


def main(file: Path) -> None:
    """Serves until standard input ends; writes the port to a file atomically."""
    with _Store() as server:
        threading.Thread(target=server.serve_forever, args=(_LOOK_S,), daemon=True).start()
        unfinished = file.with_suffix(".new")
        unfinished.write_text(str(server.server_address[1]), encoding="utf-8")
        unfinished.replace(file)
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
