"""A rank that fails costs one call and leaves nothing behind; the next ranks work."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from frameworks.base import Arguments
from frameworks.contract import RankFailed
from frameworks.ranks import Crew, RemoteCompany, close_all, crew_of
from tests.rank_crews import HASTY, PROMPT_S, TOY, assert_clean, assert_gone, company, each, toy


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
    given = [(verb, arguments[rank]) if rank in arguments else ("sleep", 60.0) for rank in range(crew.count)]
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
    began = time.monotonic()
    with pytest.raises(RankFailed) as raised:
        misbehave(crew, "leave", {1: how})
    assert str(raised.value) == message
    assert time.monotonic() - began < PROMPT_S
    assert_clean(crew, pids)


def test_a_rank_is_made_to_stop(crew: Crew) -> None:
    run = company(crew)
    assert crew.ask(run._number, "echo", each(1, 2), stop=(1, "one call fewer")) == (1, None)
    pids = crew.pids
    with pytest.raises(RankFailed, match=r"^rank 1 ended with exit status 0$") as failed:
        crew.ask(run._number, "sleep", each(60.0, 60.0), stop=(1, "exits"))
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
    crew = toy(4, "tests.toy_ranks:ToyTogether", processes=1)
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
def test_a_rank_that_hangs(verb: str) -> None:
    crew = crew_of(TOY, 2, "cpu", "", {}, limits=HASTY)
    pids = crew.pids
    run = company(crew)
    began = time.monotonic()
    with pytest.raises(RankFailed, match=r"^rank 1 did not answer within 0.8 s$"):
        crew._command(
            "ask", [(run._number, v, (Arguments((a,)),)) for v, a in (("echo", 1), (verb, 60))], HASTY.answer_s
        )
    assert time.monotonic() - began < PROMPT_S
    assert_clean(crew, pids)


def test_a_stopped_rank_that_takes_nothing() -> None:
    crew = crew_of(TOY, 2, "cpu", "", {}, limits=HASTY)
    run = company(crew)
    pids = crew.pids
    os.kill(pids[0], signal.SIGSTOP)
    with pytest.raises(RankFailed, match=r"^rank 0 did not complete a message within 0.8 s$"):
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
    while crew.alive:
        time.sleep(0.01)
    assert toy() is not crew
    assert_gone(pids)


def test_a_rank_ends_whose_own_child_has_its_connection(crew: Crew) -> None:
    run = company(crew)
    children = run.all("start_child", "fork")
    began = time.monotonic()
    with pytest.raises(RankFailed, match=r"^rank 0 ended with exit status 4"):
        misbehave(crew, "leave", {0: "exit"})
    assert time.monotonic() - began < PROMPT_S
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
        began = time.monotonic()
        pids = crew.pids
        with pytest.raises(RankFailed, match="was ended by SIGKILL"):
            keep_asking(run, draw)
        assert time.monotonic() - began < PROMPT_S
        killer.join()
        assert_gone(pids)


def test_an_interrupted_call_ends_the_ranks(crew: Crew) -> None:
    pids = crew.pids
    run = company(crew)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            run.all("sleep", 60.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert_clean(crew, pids)
