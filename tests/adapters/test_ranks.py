"""Ranks in recipes, worker groups and their processes, sockets of processes, and Paddle's rendezvous."""

import gc
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.checks.sockets import Listener, listeners, listeners_below
from conformance.checks.subject import Subject
from fixtures.data import exact_batch
from fixtures.models import exact_linear
from fixtures.recipe import Adam, Ranks, Recipe
from frameworks.base import Arguments, split_across_ranks
from frameworks.contract import Capability, RankFailed, Unsupported
from frameworks.ranks import Limits, RemoteRankGroup, WorkerGroup, close_all, worker_group_of
from frameworks.ranks.worker_group import WorkerGroupFolder
from frameworks.reference import ReferenceFramework
from tests.support.suite_runs import ROOT, assert_ended, environment, hang_limit, has_ended, wait_for
from tests.support.suite_runs import run as run_to_its_end
from tests.support.toy_ranks import PATIENT, TOY, Clock, assert_clean, for_each_rank, rank_group, toy_group

PARENT = """
import json, sys
from frameworks.base import Arguments
from frameworks.ranks import worker_group_of
group = worker_group_of("tests.support.toy_ranks:Toy", 2, "cpu", "", {})
run = group.make([(0, "", None)] * 2)
child, _ = group.ask(run, "start_child", [Arguments(("popen",))] * 2)
print(json.dumps({"pids": [*group.pids, group._guardian.pid, child], "folder": str(group._folder)}), flush=True)
verb, seconds = sys.argv[1:]
group.ask(run, verb, [Arguments((int(seconds),))] * 2)
"""
"""A process with a group of ranks that prints their process ids, calls a method and ends."""

SERVER = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 0), family=family)
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""
"""A process with a server on an address, which prints its port."""


@pytest.mark.parametrize(
    ("size", "count", "sizes"), [(8, 2, [4, 4]), (7, 2, [4, 3]), (1, 4, [1, 0, 0, 0]), (0, 2, [0, 0])]
)
def test_split_across_ranks_gives_parts_of_nearly_equal_size(size: int, count: int, sizes: list[int]) -> None:
    batch = exact_batch(8).part(0, size)
    parts = split_across_ranks(batch, count)
    assert [len(part) for part in parts] == sizes
    assert np.array_equal(np.concatenate([part.inputs for part in parts]), batch.inputs)


@pytest.mark.parametrize(("count", "replicas"), [(0, 1), (4, 3), (2, 0)])
def test_ranks_without_a_whole_number_of_replicas_are_refused(count: int, replicas: int) -> None:
    with pytest.raises(ValueError, match=f"{count} ranks cannot hold {replicas} replicas"):
        Ranks(count, "full", replicas)


def test_complete_recipe_in_a_mode_with_ranks_has_ranks() -> None:
    for mode, ranks in (("emulated", None), ("ranks", Ranks(2))):
        subject = Subject(ReferenceFramework("cpu", mode), 0)
        assert subject.complete_recipe(Recipe()).ranks == ranks
        assert subject.complete_recipe(Recipe(ranks=Ranks(4))).ranks == Ranks(4)


def test_rank_group_without_ranks_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"recipe\.ranks is required, e\.g\. Recipe\(ranks=Ranks\(2\)\)"):
        ReferenceFramework("cpu").rank_group(exact_linear(), Recipe(Adam()))


@pytest.fixture(autouse=True, scope="module")
def close_groups() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture
def worker_group() -> WorkerGroup:
    return toy_group()


def test_ask_answers_in_the_order_of_ranks() -> None:
    run = rank_group(toy_group(4), 10)
    assert run.ask("add", for_each_rank(1, 2, 3, 4)) == ((0, 11), (1, 12), (2, 13), (3, 14))
    assert run.all("add", 1, times=5) == ((0, 16), (1, 17), (2, 18), (3, 19))
    assert run.ask("sleep", for_each_rank(0.3, 0.2, 0.1, 0.0)) == (0, 1, 2, 3)
    with pytest.raises(ValueError, match=r"^add: got arguments for 3 ranks, want 4$"):
        run.ask("add", for_each_rank(1, 2, 3))


def test_worker_group_of_one_process_is_all_ranks() -> None:
    worker_group = toy_group(4, "tests.support.toy_ranks:ToyOfAllRanks", processes=1)
    assert len(worker_group.pids) == 1
    run = rank_group(worker_group, 10)
    assert run.ask("add", for_each_rank(1, 2, 3, 4)) == ((0, 11), (1, 12), (2, 13), (3, 14))
    with pytest.raises(ValueError, match="of rank 0"):
        run.all("fail", "value")
    assert worker_group.alive
    with pytest.raises(RankFailed, match=r"^the process of ranks 0 to 3 ended with exit status 4; "):
        run.all("leave", "exit")
    with pytest.raises(ValueError, match="cannot divide 3 ranks equally among 2 processes"):
        WorkerGroup(TOY, 3, "cpu", "", {}, processes=2)


def test_all_passes_large_values_and_variables() -> None:
    run = rank_group(toy_group(2, TOY_VARIABLE="here"))
    value = bytes(10_000_000)
    assert run.all("echo", value) == (value, value)
    for name, text in {
        "TOY_VARIABLE": "here",
        "OMP_NUM_THREADS": "1",
        "CONFORMANCE_GROUP_S": str(PATIENT.group_s),
    }.items():
        assert run.all("environment", name) == (text,) * 2
    assert run.all("chatter") == ("", "")


def test_run_numbers_without_dropped_runs() -> None:
    close_all()
    worker_group = toy_group()
    runs = [rank_group(worker_group, start) for start in range(3)]
    assert worker_group.run_numbers() == ((1, 2, 3),) * 2
    runs[1].close()
    with pytest.raises(ValueError, match="this run is closed"):
        runs[1].all("add", 1)
    with pytest.raises(ValueError, match="this run is closed"):
        runs[1].fail_rank([(), ()], 0, "exits")
    assert worker_group.run_numbers() == ((1, 3),) * 2
    runs.clear()
    gc.collect()
    assert worker_group.run_numbers() == ((),) * 2


def test_save_and_restore_pass_absolute_paths(worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    run = rank_group(worker_group)
    monkeypatch.setattr(worker_group, "ask", lambda _, verb, arguments: calls.append((verb, arguments[0].arguments)))
    run.save(Path("file"))
    run.restore(Path("file"))
    assert calls == [("save", (Path("file").absolute(),)), ("restore", (Path("file").absolute(),))]


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        ("value", ValueError, "of rank 0"),
        ("key", KeyError, "'no such thing'"),
        ("unsupported", Unsupported, "ranks.hybrid: no mesh"),
        ("strange", RuntimeError, "StrangeError: 1 and 2"),
        ("local", RuntimeError, "Local: cannot be pickled"),
    ],
)
def test_all_raises_the_exception_of_a_rank(
    worker_group: WorkerGroup, error: str, kind: type[Exception], text: str
) -> None:
    run = rank_group(worker_group)
    with pytest.raises(kind) as raised:
        run.all("fail", error)
    assert (type(raised.value), str(raised.value)) == (kind, text)
    assert any("in fail" in note for note in raised.value.__notes__)
    assert raised.value.__notes__[-1] == "raised by rank 0"
    assert worker_group.alive
    assert run.all("add", 1) == ((0, 1), (1, 1))


def test_all_after_a_refusal_or_a_value_that_cannot_be_pickled_works(worker_group: WorkerGroup) -> None:
    with pytest.raises(Unsupported) as raised:
        rank_group(worker_group, recipe="refused")
    assert (raised.value.capability, raised.value.reason) == (Capability.RANKS_FULL, "not here")
    run = rank_group(worker_group)
    with pytest.raises(RuntimeError, match="the result cannot be pickled"):
        run.all("unpicklable")
    with pytest.raises(Exception, match="pickle"):
        run.all("echo", lambda: None)
    assert run.all("add", 1) == ((0, 1), (1, 1))


def test_all_after_a_failed_synchronisation_ends_the_ranks() -> None:
    worker_group = toy_group(2, "tests.support.toy_ranks:ToyThatMeetsOnce")
    pids = worker_group.pids
    run = rank_group(worker_group)
    with pytest.raises(ValueError, match="of rank 0"):
        run.all("fail", "value")
    with pytest.raises(RankFailed, match="the ranks could not synchronise after an exception"):
        run.all("add", 1)
    assert_clean(worker_group, pids)


@pytest.mark.parametrize("others", ["return", "raise-another", "hang"])
def test_ask_of_a_rank_that_raises_alone_ends_the_group(worker_group: WorkerGroup, others: str) -> None:
    pids = worker_group.pids
    run = rank_group(worker_group)
    verbs = {"return": ("echo", "x"), "raise-another": ("fail", "key-later"), "hang": ("sleep", 3600.0)}
    requests = [
        (run._number, verb, tuple(for_each_rank(argument))) for verb, argument in (verbs[others], ("fail", "value"))
    ]
    with pytest.MonkeyPatch.context() as patch:
        waits_s = worker_group.limits.group_s + worker_group.limits.grace_s
        clock = Clock(patch, answers=1, step_s=waits_s / 3 if others == "hang" else 0.0)
        with pytest.raises(ValueError, match="of rank 1") as raised:
            worker_group._command("ask", requests, 10 * waits_s)
    assert clock.now <= 2 * waits_s
    assert raised.value.__notes__[-1] == "raised by rank 1"
    assert_clean(worker_group, pids)
    with pytest.raises(RankFailed, match=r"^rank group has terminated: rank 1 raised ValueError"):
        run.all("add", 1)


@pytest.mark.parametrize(
    ("kind", "device", "answers", "error", "text"),
    [
        ("tests.support.toy_ranks:Toy", "broken", 4, OSError, "no such device"),
        ("tests.support.toy_ranks:Toy", "broken-1", 3, OSError, "no such device"),
        ("tests.no_such_module:Toy", "cpu", 2, ModuleNotFoundError, "no_such_module"),
    ],
)
def test_worker_group_of_ranks_that_do_not_start_raises(
    kind: str, device: str, answers: int, error: type[Exception], text: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Clock(patch, answers, step_s=3600.0)
        with pytest.raises(error, match=text):
            worker_group_of(kind, 2, device, "", {}, limits=PATIENT)
    assert rank_group(toy_group()).all("add", 1) == ((0, 1), (1, 1))


def test_worker_group_of_slow_ranks_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, answers=2, step_s=60.0)
    with pytest.raises(RankFailed, match=r"^rank 0 and rank 1 did not answer within 50 s$"):
        WorkerGroup(TOY, 2, "cpu", "slow", {}, limits=Limits(start_s=50.0))


def test_worker_group_of_a_fifth_size_ends_the_oldest_unused_one() -> None:
    close_all()

    def group(count: int) -> WorkerGroup:
        return toy_group(count, "tests.support.toy_ranks:ToyOfAllRanks", processes=1)

    two, three = group(2), group(3)
    runs = rank_group(two), rank_group(three)
    group(1), group(4)
    assert group(2) is two
    five = group(5)
    assert all(map(has_ended, three.pids))
    assert rank_group(five).all("add", 1) == tuple((rank, 1) for rank in range(5))
    assert runs[0].all("add", 1) == ((0, 1), (1, 1))
    with pytest.raises(RankFailed, match="ranks of another kind or number were started since"):
        runs[1].all("add", 1)


def test_close_all_leaves_nothing() -> None:
    worker_group = toy_group()
    pids = (*worker_group.pids, worker_group._guardian.pid, *rank_group(worker_group).all("start_child", "popen"))
    close_all()
    assert_ended(pids)
    assert not worker_group._folder.exists()
    worker_group.close()
    with pytest.raises(RankFailed, match="rank group has terminated: they were closed"):
        worker_group.make([(0, "", None)] * 2)


def test_worker_group_of_a_killed_parent_ends() -> None:
    command = [sys.executable, "-c", PARENT, "hold", "3600"]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        started = json.loads(parent.stdout.readline())
        time.sleep(0.1)
        assert not any(map(has_ended, started["pids"]))
        parent.kill()
    assert_ended(started["pids"])
    assert not Path(started["folder"]).exists()


def test_worker_group_of_a_parent_that_returns_ends() -> None:
    command = [sys.executable, "-c", PARENT, "sleep", "0"]
    completed = run_to_its_end(command)
    assert completed.status == 0, completed.lines
    started = json.loads(completed.output)
    assert all(map(has_ended, started["pids"]))
    assert not Path(started["folder"]).exists()


def test_close_in_a_forked_copy_leaves_the_ranks_of_the_parent(worker_group: WorkerGroup) -> None:
    run = rank_group(worker_group)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            worker_group.close()
            close_all()
            run.all("add", 1)
        except RuntimeError as error:
            status = 0 if "start new ones" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run.all("add", 1) == ((0, 1), (1, 1))
    assert toy_group() is worker_group


def test_worker_group_folder_removes_folders_of_dead_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living = WorkerGroupFolder()
    child = os.fork()
    if child == 0:
        WorkerGroupFolder()
        os._exit(0)
    os.waitpid(child, 0)
    others = {"ranks-of-nobody", "ranks-linked"}
    (tmp_path / "ranks-of-nobody").mkdir()
    (tmp_path / "ranks-linked").symlink_to(living.path)
    assert len(list(tmp_path.iterdir())) == 4
    following = WorkerGroupFolder()
    assert {path.name for path in tmp_path.iterdir()} == {living.path.name, following.path.name, *others}
    for folder in (living, following):
        folder.remove()


def misbehave(worker_group: WorkerGroup, verb: str, arguments: Mapping[int, Any]) -> None:
    """Calls a method on some ranks, with an argument for each, while the others sleep."""
    run = rank_group(worker_group)
    commands = [
        (verb, arguments[rank]) if rank in arguments else ("sleep", 3600.0) for rank in range(worker_group.count)
    ]
    worker_group._command(
        "ask", [(run._number, v, (Arguments((a,)),)) for v, a in commands], worker_group.limits.answer_s
    )


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("system-exit", "rank 1 ended with exit status 3; its last output line: rank 1 leaves"),
        ("kill", "rank 1 was ended by SIGKILL; its last output line: rank 1 leaves"),
        ("interrupt", "rank 1 ended with exit status 1; its last output line: KeyboardInterrupt"),
    ],
)
def test_ask_of_a_rank_that_ends_fails_with_its_last_line(worker_group: WorkerGroup, end: str, message: str) -> None:
    pids = worker_group.pids
    with pytest.raises(RankFailed) as raised:
        misbehave(worker_group, "leave", {1: end})
    assert str(raised.value) == message
    assert_clean(worker_group, pids)


def test_ask_with_a_stop_ends_the_rank(worker_group: WorkerGroup) -> None:
    run = rank_group(worker_group)
    assert worker_group.ask(run._number, "echo", for_each_rank(1, 2), stop=(1, "one call fewer")) == (1, None)
    pids = worker_group.pids
    with pytest.raises(RankFailed, match=r"^rank 1 ended with exit status 0$") as failed:
        worker_group.ask(run._number, "sleep", for_each_rank(3600.0, 3600.0), stop=(1, "exits"))
    assert failed.value.ranks == (1,)
    assert_clean(worker_group, pids)
    worker_group = toy_group()
    pids = worker_group.pids
    run = rank_group(worker_group)
    with pytest.raises(RuntimeError, match=r"^this rank raises on request") as raised:
        worker_group.ask(run._number, "echo", for_each_rank(1, 2), stop=(0, "raises"))
    assert raised.value.__notes__[-1] == "raised by rank 0"
    assert_clean(worker_group, pids)


def test_ask_with_a_stop_ends_every_rank_of_the_process() -> None:
    worker_group = toy_group(4, "tests.support.toy_ranks:ToyOfAllRanks", processes=1)
    with pytest.raises(RankFailed) as failed:
        worker_group.ask(rank_group(worker_group)._number, "echo", for_each_rank(1, 2, 3, 4), stop=(1, "exits"))
    assert failed.value.ranks == (0, 1, 2, 3)


def test_ask_of_a_rank_that_hangs_fails_in_time(worker_group: WorkerGroup) -> None:
    pids = worker_group.pids
    run = rank_group(worker_group)
    requests = [(run._number, v, (Arguments((a,)),)) for v, a in (("echo", 1), ("hold", 3600))]
    with pytest.MonkeyPatch.context() as patch:
        Clock(patch, answers=1, step_s=60.0)
        with pytest.raises(RankFailed, match=r"^rank 1 did not answer within 50 s$"):
            worker_group._command("ask", requests, 50.0)
    assert_clean(worker_group, pids)


def test_all_of_a_stopped_rank_fails_in_time(worker_group: WorkerGroup) -> None:
    run = rank_group(worker_group)
    pids = worker_group.pids
    os.kill(pids[0], signal.SIGSTOP)
    with socket.socket(fileno=os.dup(worker_group._processes[0].connection.fileno())) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 100_000))
    with pytest.raises(RankFailed, match=rf"^rank 0 did not complete a message within {PATIENT.answer_s:g} s$"):
        run.all("echo", bytes(10_000_000))
    assert_clean(worker_group, pids)


def test_all_with_a_rank_killed_between_commands_fails(worker_group: WorkerGroup) -> None:
    run = rank_group(worker_group)
    pids = worker_group.pids
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(RankFailed, match=r"^rank 1 was ended by SIGKILL$"):
        run.all("add", 1)
    assert_ended(pids)
    worker_group = toy_group()
    os.kill(worker_group.pids[0], signal.SIGKILL)
    wait_for(lambda: not worker_group.alive)
    assert toy_group() is not worker_group


def test_ask_of_a_rank_whose_child_has_its_connection_fails(worker_group: WorkerGroup) -> None:
    run = rank_group(worker_group)
    children = run.all("start_child", "fork")
    with pytest.raises(RankFailed, match=r"^rank 0 ended with exit status 4"):
        misbehave(worker_group, "leave", {0: "exit"})
    assert_ended(children)


def keep_asking(run: RemoteRankGroup, draw: random.Random) -> None:
    while True:
        run.all("echo", bytes(draw.choice((1, 300_000))))


def test_all_with_a_rank_killed_at_a_random_moment_fails() -> None:
    draw = random.Random(0)
    for _ in range(20):
        worker_group = toy_group()
        run = rank_group(worker_group)
        victim = draw.choice(worker_group.pids)
        killer = threading.Timer(draw.uniform(0.0, 0.05), os.kill, (victim, signal.SIGKILL))
        killer.start()
        pids = worker_group.pids
        with pytest.raises(RankFailed, match="was ended by SIGKILL"):
            keep_asking(run, draw)
        killer.join()
        assert_ended(pids)


def test_all_interrupted_ends_the_ranks(worker_group: WorkerGroup) -> None:
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


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="sockets are read in /proc")
@pytest.mark.parametrize(
    ("address", "inside"), [("127.0.0.1", True), ("127.1.2.3", True), ("0.0.0.0", False), ("::1", True), ("::", False)]
)
def test_listeners_below_finds_a_child(address: str, inside: bool) -> None:
    if ":" in address and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with (
        listeners_below(os.getpid()) as below,
        subprocess.Popen(
            [sys.executable, "-c", SERVER, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child,
    ):
        port = int(child.stdout.readline())
        assert listeners(child.pid) == {Listener(child.pid, address, port)}
        wait_for(lambda: any(process.pid == child.pid for process in set(below)))
        child.communicate()
    assert [(process.address, process.inside) for process in below if process.pid == child.pid] == [(address, inside)]


def test_inside_of_a_mapped_address_is_that_of_its_ipv4_address() -> None:
    assert Listener(1, "::ffff:127.0.0.1", 1).inside
    assert not Listener(1, "::ffff:10.0.0.1", 1).inside


def test_rendezvous_of_an_ended_parent_ends(tmp_path: Path) -> None:
    program = ROOT / "frameworks" / "paddle" / "rendezvous.py"
    command = [sys.executable, "-I", "-S", str(program), str(tmp_path / "port")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as server:
        try:
            wait_for((tmp_path / "port").exists)
            address = ("127.0.0.1", int((tmp_path / "port").read_text("utf-8")))
            with socket.create_connection(address, timeout=hang_limit()) as rank:
                rank.sendall(struct.pack("=iQ", 4, 6) + b"/never")
                assert server.stdin is not None
                server.stdin.close()
                assert server.wait(hang_limit()) == 0
        finally:
            server.kill()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
