"""Costs: clauses pass on a twin that costs what it should and fail on one that does not.

Times are taken in turns while no other worker's test runs, and the cost of a whole run has a limit.
"""

from __future__ import annotations

import ast
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pytest

from conformance import timing
from conformance.checks import subprocesses
from conformance.checks.evidence import Abstention, Verdict, Violation
from conformance.checks.subject import Subject, need_device
from conformance.runner import cost
from conformance.runner.plugin import TIMED as TIMED_CLAUSES
from conformance.suites.cost import test_cost as brief
from conformance.suites.cost import test_cost_device as suite
from conformance.test_ids.inventory import SUITES, inventory
from conformance.timing import WARM_UP, time_interleaved
from fixtures.data import sincos_batch, token_batch
from fixtures.models import encoder, sincos
from fixtures.recipe import FLOAT16
from frameworks.base import measure_elapsed
from frameworks.contract import SUPPORTED, Capability, Declaration, Unsupported
from frameworks.reference import ReferenceFramework
from results.record.reading import load
from tests.support import own_loops
from tests.support.suite_runs import hang_limit, judge, outcomes

Run = Callable[[own_loops.Device], Verdict]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixtures that the reference trains in no time, in the proportions of those that fill a device."""
    monkeypatch.setattr(suite, "products", lambda: timing.equal_blocks(4, 4, 4, inputs=2))
    monkeypatch.setattr(suite, "transformer_block", lambda: (encoder(4, 2, 1, 4), token_batch(2, 4, ragged=False)))
    monkeypatch.setattr(suite, "example", lambda: (sincos(4), sincos_batch(8)))
    monkeypatch.setattr(suite, "EPOCHS", 61)
    monkeypatch.setattr(suite, "WIDTH", 8)
    monkeypatch.setattr(suite, "ROWS", 64)
    monkeypatch.setattr(suite, "WORKSPACE", 0)


def run_of(test: Callable[..., None], *args: object) -> Run:
    """Runs a test of the suite."""

    def run(framework: own_loops.Device) -> Verdict:
        verdict = Verdict()
        test(Subject(framework), verdict, *args)
        return verdict

    return run


recomputation = run_of(suite.test_recomputation_costs_one_forward_pass, None)
example = run_of(suite.test_time_of_sine_and_cosine_example, FLOAT16)
brief_recomputed = run_of(brief.test_time_of_recomputed_steps, None)
brief_mixed = run_of(brief.test_time_of_mixed_precision_steps, FLOAT16)
mixed, block = (
    {tf32: run_of(test, tf32, FLOAT16) for tf32 in ("default", "off", "on")}
    for test in (suite.test_mixed_precision_is_no_slower, suite.test_mixed_precision_speeds_up_transformer_block)
)
TIMED = {
    "recomputation": (recomputation, 1.33, 1.0, []),
    "products, default": (mixed["default"], 0.5, 1.0, [None]),
    "products, off": (mixed["off"], 0.5, 1.0, [False]),
    "products, on": (mixed["on"], 0.5 / 0.6, 0.6, [True]),
    "block, default": (block["default"], 0.5, 1.0, [None]),
    "block, off": (block["off"], 0.5, 1.0, [False]),
    "block, on": (block["on"], 0.5 / 0.6, 0.6, [True]),
    "example": (example, 0.5, 1.0, []),
    "brief, recomputed": (brief_recomputed, 1.33, 1.0, []),
    "brief, mixed": (brief_mixed, 0.5, 1.0, []),
}


@pytest.mark.parametrize("name", TIMED)
def test_a_device_that_costs_what_it_should_passes(name: str) -> None:
    run, factor, plain, scopes = TIMED[name]
    framework = own_loops.Device()
    (measured,) = run(framework).measurements.values()
    assert framework.scopes == scopes
    unit, samples, control = measured
    assert (unit, len(samples), len(control)) == ("s", 60, 60)
    assert np.median(samples) / np.median(control) == pytest.approx(factor, rel=0.01)
    assert np.median(control) == pytest.approx(1e-3 * plain, rel=0.002)


@pytest.mark.parametrize(
    ("run", "times", "signature"),
    [
        (recomputation, {"recomputed": 1.67}, "slower-than-one-forward"),
        (recomputation, {"recomputed": 0.9}, "faster-than-plain"),
        (mixed["off"], {"mixed": 1.1}, "slower-than-float32"),
        (mixed["on"], {"mixed": 0.8}, "slower-than-float32"),
        (block["off"], {"mixed": 1.1}, "slower-than-float32"),
    ],
)
def test_an_interval_wholly_beyond_its_bound_fails(run: Run, times: dict[str, float], signature: str) -> None:
    with pytest.raises(Violation) as caught:
        run(own_loops.Device(times=times))
    assert caught.value.signature == signature


@pytest.mark.parametrize("run", [block["on"], block["default"], example, brief_recomputed, brief_mixed])
def test_what_has_no_bound_is_timed_and_not_judged(run: Run) -> None:
    assert run(own_loops.Device(times={"mixed": 1.1, "recomputed": 9.0})).checks == []


@pytest.mark.parametrize("name", TIMED)
def test_a_plain_step_that_differs_from_itself_leaves_the_clause(name: str) -> None:
    with pytest.raises(Abstention, match="the same step in two runs differs: ratio"):
        TIMED[name][0](own_loops.Device(drift=0.1))


def test_the_example_is_its_thousand_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(suite, "EPOCHS", 1000)
    monkeypatch.setattr(suite, "compare_times", lambda *args: asked.append(args[-1]))
    example(own_loops.Device())
    assert asked == [17]
    assert 60 * 17 >= 1000


def peak(framework: own_loops.Device, technique: str, folder: Path) -> Verdict:
    return run_of(suite.test_allocator_peak_matches_byte_count, folder, technique)(framework)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes peaks in this process."""

    def measure_peak(subject: Subject, model: object, recipe: object, window: object, path: Path) -> int:
        arguments = (subject.framework.device, subject.framework.mode, model, subject.complete_recipe(recipe), window)
        framework_class = type(subject.framework)
        del path
        return subprocesses.PeakTask(f"{framework_class.__module__}:{framework_class.__qualname__}", *arguments).run()

    monkeypatch.setattr(subprocesses, "peak_bytes", measure_peak)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("technique", suite.TECHNIQUES)
def test_a_peak_that_follows_the_count_passes(technique: str, tmp_path: Path) -> None:
    result = peak(own_loops.Device(), technique, tmp_path)
    assert [unit for unit, _, _ in result.measurements.values()] == ["B"] * 4
    assert result.checks[-1].bound is not None
    assert 0.1 < result.checks[-1].bound < 0.25


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("broken", "technique", "signature"),
    [
        (own_loops.KeepsFloat32, "O1-float16", "apart"),
        (own_loops.KeepsFloat32, "O1-bfloat16", "apart"),
        (own_loops.KeepsSegments, "recomputed", "apart"),
        (own_loops.KeepsMicroBatches, "accumulated", "apart"),
        (own_loops.NoPeak, "recomputed", "no-peak"),
    ],
)
def test_a_peak_that_stays_or_is_of_weights_alone_fails(
    broken: type[own_loops.Device], technique: str, signature: str, tmp_path: Path
) -> None:
    with pytest.raises(Violation) as caught:
        peak(broken(), technique, tmp_path)
    assert caught.value.signature == signature


def test_a_peak_is_taken_in_a_process_of_its_own(tmp_path: Path) -> None:
    subject, (model, batch) = Subject(own_loops.Device()), timing.equal_blocks(2, 4, 4)
    result = subprocesses.peak_bytes(subject, model, timing.RECIPE, (batch,), tmp_path / "peak")
    run = subject.trainer(model, timing.RECIPE)
    run.update((batch,))
    assert result == run.peak_bytes() > sum(value.nbytes for value in model.weights(0).values())


def test_a_cpu_is_no_device_whatever_it_declares() -> None:
    with pytest.raises(Unsupported) as caught:
        need_device(Subject(own_loops.Device("cpu")))
    assert (caught.value.capability, caught.value.reason) == (Capability.PEAK_BYTES, "no device")
    need_device(Subject(own_loops.Device("cuda")))


def test_without_a_peak_or_the_switch_only_the_default_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = own_loops.Device()
    refused = {Capability.PEAK_BYTES: Declaration(False, "none here"), Capability.TF32: Declaration(False, "no switch")}
    monkeypatch.setattr(framework, "declares", lambda capability: refused.get(capability, SUPPORTED))
    with pytest.raises(Unsupported, match="none here"):
        need_device(Subject(framework))
    del refused[Capability.PEAK_BYTES]
    assert len(mixed["default"](framework).measurements) == 1
    for tf32 in ("off", "on"):
        with pytest.raises(Unsupported, match="no switch"):
            mixed[tf32](framework)


def test_the_mark_selects_what_needs_a_device(tmp_path: Path) -> None:
    result = judge("-m", "gpu", f"--record={tmp_path / 'record.json'}")
    assert result.status == 0
    record = load(tmp_path / "record.json")
    files = {inventory()[verdict.case.partition("[")[0]].file for verdict in record.verdicts}
    assert files == {"cost/test_cost_device.py"}
    assert {verdict.outcome for verdict in record.verdicts} == {*outcomes(record, "cost.mixed-speed")}
    assert {verdict.reason for verdict in record.verdicts} == {"no device"}


def test_a_clock_is_the_processors_on_a_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: list[object] = []
    monkeypatch.setattr("frameworks.base.framework.measure_elapsed", lambda _, clock: clocks.append(clock) or 0)
    framework = ReferenceFramework("cpu")
    for framework.device in ("cpu", "cuda"):
        framework.measure_time(lambda: None)
    assert clocks == [time.process_time_ns, time.perf_counter_ns]


def test_an_allocators_grain_is_allowed_on_a_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = ReferenceFramework("cpu")
    assert brief.slack(Subject(framework), 3) == 8
    monkeypatch.setattr(framework, "device", "cuda")
    assert brief.slack(Subject(framework), 3) == 8 + 3 * 512


def test_what_takes_times_alone_is_what_runs_last() -> None:
    """Other workers wait for the tests whose names lead to `time_interleaved`; the plugin puts those clauses last."""
    timers, timed = {"time_interleaved", "compare_times"}, set[str]()
    for path in sorted(SUITES.rglob("test_*.py")):
        functions = [node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)]
        named = {
            function.name: {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
            for function in functions
        }
        own = {name for name, names in named.items() if names & timers}
        tests = {name for name in named if name.startswith("test_") and (named[name] & (own | timers))}
        timed |= {
            code.clause for code in inventory().values() if code.file.endswith(path.name) and code.function in tests
        }
    assert timed == TIMED_CLAUSES


@pytest.mark.parametrize(
    ("framework", "spent", "processor", "ci", "over"),
    [
        ("torch", 104.0, "A", "true", False),
        ("torch", 106.0, "A", "true", True),
        ("tf", 900.0, "A", "true", False),
        ("torch", 900.0, "B", "true", False),
        ("torch", 900.0, "A", "", False),
    ],
)
def test_cost_above_the_file_is_too_much_on_its_processor_in_ci(
    framework: str, spent: float, processor: str, ci: str, over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "processor_model", lambda: processor)
    monkeypatch.setenv("CI", ci)
    (tmp_path / "costs.toml").write_text('processor = "A"\n[quick]\ntorch = 100.0\n')
    line, result = cost.judge(framework, "quick", spent, tmp_path / "costs.toml")
    assert result is over
    assert line.startswith(f"cost: {spent:.0f} yardsticks of processor time")
    assert "edit the file and say why" in line or not over


def test_committed_costs_can_be_read_and_the_yardstick_takes_time() -> None:
    _, limits = cost.limits()
    assert all(number > 0 for of_selection in limits.values() for number in of_selection.values())
    assert 0.001 < cost.Yardstick().stop() < 10


locks = pytest.mark.skipif(timing.fcntl is None, reason="POSIX locks only")
PROCESSES = multiprocessing.get_context("spawn")
TESTS = 12


def worker(folder: Path, name: str, queue: Queue[tuple[str, str, float, float]]) -> None:
    """Tests of 5 ms each, in every third of which 20 ms of times are taken by all workers but c."""
    timing.join(folder)
    for number in range(TESTS):
        with timing.share_machine():
            begin = time.monotonic()
            time.sleep(0.005)
            middle = time.monotonic()
            queue.put((name, "test", begin, middle))
            if name != "c" and number % 3 == 0:
                with timing.alone():
                    begin = time.monotonic()
                    time.sleep(0.02)
                    queue.put((name, "alone", begin, time.monotonic()))


@locks
def test_nobody_tests_while_another_takes_times(tmp_path: Path) -> None:
    queue: Queue[tuple[str, str, float, float]] = PROCESSES.Queue()
    workers = [PROCESSES.Process(target=worker, args=(tmp_path, name, queue)) for name in "abc"]
    for one in workers:
        one.start()
    entries = [queue.get(timeout=hang_limit()) for _ in range(3 * TESTS + 2 * TESTS // 3)]
    for one in workers:
        one.join(hang_limit())
        assert one.exitcode == 0
    for name, what, begin, end in entries:
        if what == "alone":
            beside = [(n, b, e) for n, _, b, e in entries if n != name and b < end and e > begin]
            assert beside == []


@locks
def test_a_worker_that_was_killed_keeps_nobody_waiting(tmp_path: Path) -> None:
    ready = PROCESSES.Event()
    holder = PROCESSES.Process(target=holding, args=(tmp_path, ready))
    holder.start()
    assert ready.wait(hang_limit())
    holder.kill()
    company_of_one = timing.Workers(tmp_path)
    with company_of_one.share_machine(), company_of_one.alone():
        pass
    holder.join(hang_limit())


def holding(folder: Path, ready: Event) -> None:
    """A test that does not end."""
    timing.join(folder)
    with timing.share_machine(), timing.alone():
        ready.set()
        time.sleep(3600.0)


def test_each_round_runs_every_work_once_in_an_order_that_varies() -> None:
    called: list[str] = []
    names = ("plain", "twin", "technique")
    works = {name: partial(called.append, name) for name in names}
    times = time_interleaved(works, 40, np.random.default_rng(0), lambda work: work() or len(called))
    rounds = [tuple(called[i : i + 3]) for i in range(0, len(called), 3)]
    assert len(rounds) == WARM_UP + 40
    assert all(sorted(one) == sorted(names) for one in rounds)
    assert len(Counter(rounds)) == 6
    assert {name: len(result) for name, result in times.items()} == dict.fromkeys(names, 40)
    assert sorted(at for result in times.values() for at in result) == [*range(3 * WARM_UP + 1, len(called) + 1)]


def test_a_time_is_that_of_its_work_in_nanoseconds() -> None:
    now = [0]

    def work(spent: int) -> None:
        now[0] += spent

    works = {"slow": partial(work, 10_000_000), "quick": partial(work, 7)}
    times = time_interleaved(works, 3, np.random.default_rng(0), partial(measure_elapsed, clock=lambda: now[0]))
    assert times == {"slow": [10_000_000] * 3, "quick": [7] * 3}
