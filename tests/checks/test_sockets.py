"""What processes listen on is read from /proc, and told apart by who can reach it."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.techniques.sharding import Listener, listeners, listeners_below
from tests.support.suite_runs import wait_for

pytestmark = pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="sockets are read in /proc")
CHILD = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 0), family=family)
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("address", "inside"), [("127.0.0.1", True), ("127.1.2.3", True), ("0.0.0.0", False), ("::1", True), ("::", False)]
)
def test_listeners_below_finds_a_child(address: str, inside: bool) -> None:
    if ":" in address and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with (
        listeners_below(os.getpid()) as below,
        subprocess.Popen(
            [sys.executable, "-c", CHILD, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child,
    ):
        assert child.stdout is not None
        port = int(child.stdout.readline())
        assert listeners(child.pid) == {Listener(child.pid, address, port)}
        wait_for(lambda: any(own.pid == child.pid for own in set(below)))
        child.communicate()
    assert [(own.address, own.inside) for own in below if own.pid == child.pid] == [(address, inside)]


def test_listeners_leave_out_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        ports = {own.port for own in listeners(os.getpid())}
        assert server.getsockname()[1] in ports
        assert client.getsockname()[1] not in ports


def test_listeners_of_an_ended_process_are_none() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    assert listeners(ended.pid) == set()


def test_inside_of_a_mapped_address_is_that_of_the_older_kind() -> None:
    assert Listener(1, "::ffff:127.0.0.1", 1).inside
    assert not Listener(1, "::ffff:10.0.0.1", 1).inside
