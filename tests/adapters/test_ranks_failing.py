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
from frameworks.ranks import Crew, RemoteCompany, close_all
from tests.support.rank_crews import PATIENT, Clock, assert_clean, assert_gone, company, each, toy
from tests.support.suite_runs import wait_for


@pytest.fixture(autouse=True, scope="module")
def ended() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture
def crew() -> Crew:
    return toy()


def misbehave(crew: Crew, verb: str, arguments: Mapping[int, Any]) -> None:
    """One rank does something, the others wait."""
    run = company(crew)
    given = [(verb, arguments[rank]) if rank in arguments else ("sleep", 3600.0) for rank in range(crew.count)]
    crew._command("ask", [(run._number, v, (Arguments((a,)),)) for v, a in given], crew.limits.answer_s)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("system-exit", "rank 1 ended with exit status 3; its last output line: rank 1 leaves"),
        ("exit", "rank 1 ended with exit status 4; its last output line: rank 1 leaves"),
        ("kill", "rank 1 was ended by SIGKILL; its last output line: rank 1 leaves"),
        ("interrupt", "rank 1 ended with exit status 1; its last output line: KeyboardInterrupt"),
    ],
)
def test_a_rank_that_ends(crew: Crew, how: str, message: str) -> None:
    pids = crew.pids
    with pytest.raises(RankFailed) as raised:
        misbehave(crew, "leave", {1: how})
    assert str(raised.value) == message
    assert_clean(crew, pids)


def test_a_rank_is_made_to_stop(crew: Crew) -> None:
    run = company(crew)
    assert crew.ask(run._number, "echo", each(1, 2), stop=(1, "one call fewer")) == (1, None)
    pids = crew.pids
    with pytest.raises(RankFailed, match=r"^rank 1 ended with exit status 0$") as failed:
        crew.ask(run._number, "sleep", each(3600.0, 3600.0), stop=(1, "exits"))
    assert failed.value.ranks == (1,)
    assert_clean(crew, pids)
    crew = toy()
    pids = crew.pids
    run = company(crew)
    with pytest.raises(RuntimeError, match=r"^this rank raises on request") as raised:
        crew.ask(run._number, "echo", each(1, 2), stop=(0, "raises"))
    assert raised.value.__notes__[-1] == "raised by rank 0"
    assert_clean(crew, pids)


def test_a_rank_that_stops_takes_those_of_its_process_with_it() -> None:
    crew = toy(4, "tests.support.toy_ranks:ToyTogether", processes=1)
    with pytest.raises(RankFailed) as failed:
        crew.ask(company(crew)._number, "echo", each(1, 2, 3, 4), stop=(1, "exits"))
    assert failed.value.ranks == (0, 1, 2, 3)


def test_a_closed_run_cannot_lose_a_rank(crew: Crew) -> None:
    run = company(crew)
    run.close()
    with pytest.raises(ValueError, match="this run is closed"):
        run.lose([(), ()], 0, "exits")
    assert crew.alive


@pytest.mark.parametrize("verb", ["sleep", "hold"])
def test_a_rank_that_hangs(crew: Crew, verb: str) -> None:
    pids = crew.pids
    run = company(crew)
    asked = [(run._number, v, (Arguments((a,)),)) for v, a in (("echo", 1), (verb, 3600))]
    with pytest.MonkeyPatch.context() as patch:
        Clock(patch, answers=1, step_s=60.0)
        with pytest.raises(RankFailed, match=r"^rank 1 did not answer within 50 s$"):
            crew._command("ask", asked, 50.0)
    assert_clean(crew, pids)


def test_a_stopped_rank_that_takes_nothing(crew: Crew) -> None:
    run = company(crew)
    pids = crew.pids
    os.kill(pids[0], signal.SIGSTOP)
    with socket.socket(fileno=os.dup(crew._processes[0].connection.fileno())) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 100_000))
    with pytest.raises(RankFailed, match=rf"^rank 0 did not complete a message within {PATIENT.answer_s:g} s$"):
        run.all("echo", bytes(10_000_000))
    assert_clean(crew, pids)


def test_a_rank_is_killed_between_commands(crew: Crew) -> None:
    run = company(crew)
    os.kill(crew.pids[1], signal.SIGKILL)
    with pytest.raises(RankFailed, match=r"^rank 1 was ended by SIGKILL$"):
        run.all("add", 1)
    crew = toy()
    pids = crew.pids
    os.kill(pids[0], signal.SIGKILL)
    wait_for(lambda: not crew.alive)
    assert toy() is not crew
    assert_gone(pids)


def test_a_rank_ends_whose_own_child_has_its_connection(crew: Crew) -> None:
    run = company(crew)
    children = run.all("start_child", "fork")
    with pytest.raises(RankFailed, match=r"^rank 0 ended with exit status 4"):
        misbehave(crew, "leave", {0: "exit"})
    assert_gone(children)


def keep_asking(run: RemoteCompany, draw: random.Random) -> None:
    while True:
        run.all("echo", bytes(draw.choice((1, 300_000))))


def test_random_moments() -> None:
    draw = random.Random(0)
    for _ in range(20):
        crew = toy()
        run = company(crew)
        victim = draw.choice(crew.pids)
        killer = threading.Timer(draw.uniform(0.0, 0.05), os.kill, (victim, signal.SIGKILL))
        killer.start()
        pids = crew.pids
        with pytest.raises(RankFailed, match="was ended by SIGKILL"):
            keep_asking(run, draw)
        killer.join()
        assert_gone(pids)


def test_an_interrupted_call_ends_the_ranks(crew: Crew) -> None:
    pids = crew.pids
    run = company(crew)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run.all("interrupt")
    finally:
        signal.signal(signal.SIGALRM, former)
    assert_clean(crew, pids)
