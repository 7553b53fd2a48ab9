"""A rank that fails costs one call and leaves nothing behind; the next ranks work."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from frameworks.base import Arguments
from frameworks.contract import RankFailed
from frameworks.ranks import RemoteRankGroup, WorkerGroup, close_all
from tests.support.suite_runs import wait_for
from tests.support.toy_worker_groups import PATIENT, Clock, assert_clean, assert_gone, each, rank_group, toy


@pytest.fixture(autouse=True, scope="module")
def ended() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture
def worker_group() -> WorkerGroup:
    return toy()


def misbehave(worker_group: WorkerGroup, verb: str, arguments: Mapping[int, Any]) -> None:
    """One rank does something, the others wait."""
    run = rank_group(worker_group)
    given = [(verb, arguments[rank]) if rank in arguments else ("sleep", 3600.0) for rank in range(worker_group.count)]
    worker_group._command("ask", [(run._number, v, (Arguments((a,)),)) for v, a in given], worker_group.limits.answer_s)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("system-exit", "rank 1 ended with exit status 3; its last output line: rank 1 leaves"),
        ("exit", "rank 1 ended with exit status 4; its last output line: rank 1 leaves"),
        ("kill", "rank 1 was ended by SIGKILL; its last output line: rank 1 leaves"),
        ("interrupt", "rank 1 ended with exit status 1; its last output line: KeyboardInterrupt"),
    ],
)
def test_a_rank_that_ends(worker_group: WorkerGroup, how: str, message: str) -> None:
    pids = worker_group.pids
    with pytest.raises(RankFailed) as raised:
        misbehave(worker_group, "leave", {1: how})
    assert str(raised.value) == message
    assert_clean(worker_group, pids)


def test_a_rank_is_made_to_stop(worker_group: WorkerGroup) -> None:
    run = rank_group(worker_group)
    assert worker_group.ask(run._number, "echo", each(1, 2), stop=(1, "one call fewer")) == (1, None)
    pids = worker_group.pids
    with pytest.raises(RankFailed, match=r"^rank 1 ended with exit status 0$") as failed:
        worker_group.ask(run._number, "sleep", each(3600.0, 3600.0), stop=(1, "exits"))
    assert failed.value.ranks == (1,)
    assert_clean(worker_group, pids)
    worker_group = toy()
    pids = worker_group.pids
    run = rank_group(worker_group)
    with pytest.raises(RuntimeError, match=r"^this rank raises on request") as raised:
        worker_group.ask(run._number, "echo", each(1, 2), stop=(0, "raises"))
    assert raised.value.__notes__[-1] == "raised by rank 0"
    assert_clean(worker_group, pids)


def test_a_rank_that_stops_takes_those_of_its_process_with_it() -> None:
    worker_group = toy(4, "tests.support.toy_ranks:ToyTogether", processes=1)
    with pytest.raises(RankFailed) as failed:
        worker_group.ask(rank_group(worker_group)._number, "echo", each(1, 2, 3, 4), stop=(1, "exits"))
    assert failed.value.ranks == (0, 1, 2, 3)


def test_a_closed_run_cannot_lose_a_rank(worker_group: WorkerGroup) -> None:
    run = rank_group(worker_group)
    run.close()
    with pytest.raises(ValueError, match="this run is closed"):
        run.fail_rank([(), ()], 0, "exits")
    assert worker_group.alive


@pytest.mark.parametrize("verb", ["sleep", "hold"])
def test_a_rank_that_hangs(worker_group: WorkerGroup, verb: str) -> None:
    pids = worker_group.pids
    run = rank_group(worker_group)
    asked = [(run._number, v, (Arguments((a,)),)) for v, a in (("echo", 1), (verb, 3600))]
    with pytest.MonkeyPatch.context() as patch:
        Clock(patch, answers=1, step_s=60.0)
        with pytest.raises(RankFailed, match=r"^rank 1 did not answer within 50 s$"):
            worker_group._command("ask", asked, 50.0)
    assert_clean(worker_group, pids)


def test_a_stopped_rank_that_takes_nothing(worker_group: WorkerGroup) -> None:
    run = rank_group(worker_group)
    pids = worker_group.pids
    os.kill(pids[0], signal.SIGSTOP)
    with socket.socket(fileno=os.dup(worker_group._processes[0].connection.fileno())) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 100_000))
    with pytest.raises(RankFailed, match=rf"^rank 0 did not complete a message within {PATIENT.answer_s:g} s$"):
        run.all("echo", bytes(10_000_000))
    assert_clean(worker_group, pids)


def test_a_rank_is_killed_between_commands(worker_group: WorkerGroup) -> None:
    run = rank_group(worker_group)
    os.kill(worker_group.pids[1], signal.SIGKILL)
    with pytest.raises(RankFailed, match=r"^rank 1 was ended by SIGKILL$"):
        run.all("add", 1)
    worker_group = toy()
    pids = worker_group.pids
    os.kill(pids[0], signal.SIGKILL)
    wait_for(lambda: not worker_group.alive)
    assert toy() is not worker_group
    assert_gone(pids)


def test_a_rank_ends_whose_own_child_has_its_connection(worker_group: WorkerGroup) -> None:
    run = rank_group(worker_group)
    children = run.all("start_child", "fork")
    with pytest.raises(RankFailed, match=r"^rank 0 ended with exit status 4"):
        misbehave(worker_group, "leave", {0: "exit"})
    assert_gone(children)


def keep_asking(run: RemoteRankGroup, draw: random.Random) -> None:
    while True:
        run.all("echo", bytes(draw.choice((1, 300_000))))


def test_random_moments() -> None:
    draw = random.Random(0)
    for _ in range(20):
        worker_group = toy()
        run = rank_group(worker_group)
        victim = draw.choice(worker_group.pids)
        killer = threading.Timer(draw.uniform(0.0, 0.05), os.kill, (victim, signal.SIGKILL))
        killer.start()
        pids = worker_group.pids
        with pytest.raises(RankFailed, match="was ended by SIGKILL"):
            keep_asking(run, draw)
        killer.join()
        assert_gone(pids)


def test_an_interrupted_call_ends_the_ranks(worker_group: WorkerGroup) -> None:
    pids = worker_group.pids
    run = rank_group(worker_group)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run.all("interrupt")
    finally:
        signal.signal(signal.SIGALRM, former)
    assert_clean(worker_group, pids)
