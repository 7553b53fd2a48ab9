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
from conformance.suites.cost import test_cost as cpu_suite
from conformance.suites.cost import test_cost_device as suite
from conformance.test_ids import SUITES, inventory
from conformance.timing import WARM_UP, time_interleaved
from fixtures.data import sincos_batch, token_batch
from fixtures.models import encoder, sincos
from fixtures.recipe import FLOAT16
from frameworks.base import measure_elapsed
from frameworks.contract import SUPPORTED, Capability, Declaration, Unsupported
from frameworks.reference import ReferenceFramework
from results.record.reading import load
from tests.support import misbehaving
from tests.support.suite_runs import hang_limit, judge, outcomes

PROCESSES = multiprocessing.get_context("spawn")
TESTS = 12
Run = Callable[[misbehaving.Device], Verdict]
needs_locks = pytest.mark.skipif(timing.fcntl is None, reason="POSIX locks only")


@pytest.fixture(autouse=True)
def small_fixtures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the fixtures that fill a device by small ones of the same proportions."""
    monkeypatch.setattr(suite, "products", lambda: timing.equal_blocks(4, 4, 4, inputs=2))
    monkeypatch.setattr(suite, "transformer_block", lambda: (encoder(4, 2, 1, 4), token_batch(2, 4, ragged=False)))
    monkeypatch.setattr(suite, "example", lambda: (sincos(4), sincos_batch(8)))
    monkeypatch.setattr(suite, "EPOCHS", 61)
    monkeypatch.setattr(suite, "WIDTH", 8)
    monkeypatch.setattr(suite, "ROWS", 64)
    monkeypatch.setattr(suite, "WORKSPACE", 0)


def run_of(test: Callable[..., None], *args: object) -> Run:
    """Runs a test of the suite."""

    def run(framework: misbehaving.Device) -> Verdict:
        verdict = Verdict()
        test(Subject(framework), verdict, *args)
        return verdict

    return run


recomputation = run_of(suite.test_recomputation_costs_one_forward_pass, None)
example = run_of(suite.test_time_of_sine_and_cosine_example, FLOAT16)
cpu_recomputed = run_of(cpu_suite.test_time_of_recomputed_steps, None)
cpu_mixed = run_of(cpu_suite.test_time_of_mixed_precision_steps, FLOAT16)
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
    "on a CPU, recomputed": (cpu_recomputed, 1.33, 1.0, []),
    "on a CPU, mixed": (cpu_mixed, 0.5, 1.0, []),
}


@pytest.mark.parametrize("name", TIMED)
def test_cost_tests_of_a_normal_device_pass(name: str) -> None:
    run, factor, plain, scopes = TIMED[name]
    framework = misbehaving.Device()
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
def test_cost_tests_of_a_slow_device_fail(run: Run, times: dict[str, float], signature: str) -> None:
    with pytest.raises(Violation) as caught:
        run(misbehaving.Device(times=times))
    assert caught.value.signature == signature


@pytest.mark.parametrize("run", [block["on"], block["default"], example, cpu_recomputed, cpu_mixed])
def test_cost_tests_without_a_bound_do_not_judge(run: Run) -> None:
    assert run(misbehaving.Device(times={"mixed": 1.1, "recomputed": 9.0})).checks == []


@pytest.mark.parametrize("name", TIMED)
def test_cost_tests_of_a_drifting_device_abstain(name: str) -> None:
    with pytest.raises(Abstention, match="the same step in two runs differs: ratio"):
        TIMED[name][0](misbehaving.Device(drift=0.1))


def test_example_times_a_thousand_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(suite, "EPOCHS", 1000)
    monkeypatch.setattr(suite, "compare_times", lambda *_, steps, **__: counts.append(steps))
    example(misbehaving.Device())
    assert counts == [17]
    assert 60 * 17 >= 1000


def judge_peak(framework: misbehaving.Device, technique: str, folder: Path) -> Verdict:
    return run_of(suite.test_allocator_peak_matches_byte_count, folder, technique)(framework)


@pytest.fixture
def peaks_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes peaks in this process."""

    def measure_peak(subject: Subject, model: object, recipe: object, window: object, path: Path) -> int:
        arguments = (subject.framework.device, subject.framework.mode, model, subject.complete_recipe(recipe), window)
        framework_class = type(subject.framework)
        del path
        return subprocesses.PeakTask(f"{framework_class.__module__}:{framework_class.__qualname__}", *arguments).run()

    monkeypatch.setattr(subprocesses, "peak_bytes", measure_peak)


@pytest.mark.usefixtures("peaks_in_this_process")
@pytest.mark.parametrize("technique", suite.TECHNIQUES)
def test_peak_of_a_normal_device_passes(technique: str, tmp_path: Path) -> None:
    result = judge_peak(misbehaving.Device(), technique, tmp_path)
    assert [unit for unit, _, _ in result.measurements.values()] == ["B"] * 4
    assert result.checks[-1].bound is not None
    assert 0.1 < result.checks[-1].bound < 0.25


@pytest.mark.usefixtures("peaks_in_this_process")
@pytest.mark.parametrize(
    ("broken", "technique", "signature"),
    [
        (misbehaving.KeepsFloat32, "O1-float16", "apart"),
        (misbehaving.KeepsFloat32, "O1-bfloat16", "apart"),
        (misbehaving.KeepsSegments, "recomputed", "apart"),
        (misbehaving.KeepsMicroBatches, "accumulated", "apart"),
        (misbehaving.NoPeak, "recomputed", "no-peak"),
    ],
)
def test_peak_of_a_device_that_keeps_bytes_fails(
    broken: type[misbehaving.Device], technique: str, signature: str, tmp_path: Path
) -> None:
    with pytest.raises(Violation) as caught:
        judge_peak(broken(), technique, tmp_path)
    assert caught.value.signature == signature


def test_peak_bytes_is_measured_in_another_process(tmp_path: Path) -> None:
    subject, (model, batch) = Subject(misbehaving.Device()), timing.equal_blocks(2, 4, 4)
    result = subprocesses.peak_bytes(subject, model, timing.RECIPE, (batch,), tmp_path / "peak")
    run = subject.trainer(model, timing.RECIPE)
    run.update((batch,))
    assert result == run.peak_bytes() > sum(value.nbytes for value in model.weights(0).values())


def test_need_device_on_a_cpu_is_refused() -> None:
    with pytest.raises(Unsupported) as caught:
        need_device(Subject(misbehaving.Device("cpu")))
    assert (caught.value.capability, caught.value.reason) == (Capability.PEAK_BYTES, "no device")
    need_device(Subject(misbehaving.Device("cuda")))


def test_mixed_without_a_switch_times_the_default_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = misbehaving.Device()
    refused = {Capability.PEAK_BYTES: Declaration(False, "none here"), Capability.TF32: Declaration(False, "no switch")}
    monkeypatch.setattr(framework, "declares", lambda capability: refused.get(capability, SUPPORTED))
    with pytest.raises(Unsupported, match="none here"):
        need_device(Subject(framework))
    del refused[Capability.PEAK_BYTES]
    assert len(mixed["default"](framework).measurements) == 1
    for tf32 in ("off", "on"):
        with pytest.raises(Unsupported, match="no switch"):
            mixed[tf32](framework)


def test_run_of_the_mark_gpu_selects_tests_of_a_device(tmp_path: Path) -> None:
    result = judge("-m", "gpu", f"--record={tmp_path / 'record.json'}")
    assert result.status == 0
    record = load(tmp_path / "record.json")
    files = {inventory()[verdict.case.partition("[")[0]].file for verdict in record.verdicts}
    assert files == {"cost/test_cost_device.py"}
    assert {verdict.outcome for verdict in record.verdicts} == {*outcomes(record, "cost.mixed-speed")}
    assert {verdict.reason for verdict in record.verdicts} == {"no device"}


def test_measure_time_on_a_cpu_takes_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: list[object] = []
    monkeypatch.setattr("frameworks.base.framework.measure_elapsed", lambda _, clock: clocks.append(clock) or 0)
    framework = ReferenceFramework("cpu")
    for framework.device in ("cpu", "cuda"):
        framework.measure_time(lambda: None)
    assert clocks == [time.process_time_ns, time.perf_counter_ns]


def test_slack_on_a_device_allows_the_allocation_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = ReferenceFramework("cpu")
    assert cpu_suite.slack(Subject(framework), 3) == 8
    monkeypatch.setattr(framework, "device", "cuda")
    assert cpu_suite.slack(Subject(framework), 3) == 8 + 3 * 512


def test_timed_clauses_are_those_of_tests_that_measure_times() -> None:
    """The plugin puts the clauses of every test that calls `time_interleaved` last."""
    timers, timed = {"time_interleaved", "compare_times"}, set[str]()
    for path in sorted(SUITES.rglob("test_*.py")):
        functions = [node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)]
        named = {
            function.name: {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
            for function in functions
        }
        helpers = {name for name, names in named.items() if names & timers}
        tests = {name for name in named if name.startswith("test_") and (named[name] & (helpers | timers))}
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
def test_judge_of_a_cost_above_the_limit_fails_on_its_processor_in_ci(
    framework: str, spent: float, processor: str, ci: str, over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "processor_model", lambda: processor)
    monkeypatch.setenv("CI", ci)
    (tmp_path / "costs.toml").write_text('processor = "A"\n[quick]\ntorch = 100.0\n')
    line, result = cost.judge(framework, "quick", spent, tmp_path / "costs.toml")
    assert result is over
    assert line.startswith(f"cost: {spent:.0f} yardsticks of processor time")
    assert "edit the file and say why" in line or not over


def test_committed_cost_limits_are_positive() -> None:
    _, limits = cost.limits()
    assert all(number > 0 for of_selection in limits.values() for number in of_selection.values())
    assert 0.001 < cost.Yardstick().stop() < 10


def run_worker(folder: Path, name: str, queue: Queue[tuple[str, str, float, float]]) -> None:
    """Runs tests of 5 ms each; after every third, all workers but c take times for 20 ms."""
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


@needs_locks
def test_alone_runs_while_no_other_worker_tests(tmp_path: Path) -> None:
    queue: Queue[tuple[str, str, float, float]] = PROCESSES.Queue()
    workers = [PROCESSES.Process(target=run_worker, args=(tmp_path, name, queue)) for name in "abc"]
    for process in workers:
        process.start()
    entries = [queue.get(timeout=hang_limit()) for _ in range(3 * TESTS + 2 * TESTS // 3)]
    for process in workers:
        process.join(hang_limit())
        assert process.exitcode == 0
    for name, kind, begin, end in entries:
        if kind == "alone":
            overlapping = [(n, b, e) for n, _, b, e in entries if n != name and b < end and e > begin]
            assert overlapping == []


@needs_locks
def test_alone_after_a_killed_worker_does_not_wait(tmp_path: Path) -> None:
    ready = PROCESSES.Event()
    holder = PROCESSES.Process(target=hold_machine, args=(tmp_path, ready))
    holder.start()
    assert ready.wait(hang_limit())
    holder.kill()
    workers = timing.Workers(tmp_path)
    with workers.share_machine(), workers.alone():
        pass
    holder.join(hang_limit())


def hold_machine(folder: Path, ready: Event) -> None:
    """Holds the machine in a test that does not end."""
    timing.join(folder)
    with timing.share_machine(), timing.alone():
        ready.set()
        time.sleep(3600.0)


def test_time_interleaved_runs_every_work_once_a_round() -> None:
    called: list[str] = []
    names = ("plain", "twin", "technique")
    works = {name: partial(called.append, name) for name in names}
    times = time_interleaved(works, 40, np.random.default_rng(0), lambda work: work() or len(called))
    rounds = [tuple(called[i : i + 3]) for i in range(0, len(called), 3)]
    assert len(rounds) == WARM_UP + 40
    assert all(sorted(order) == sorted(names) for order in rounds)
    assert len(Counter(rounds)) == 6
    assert {name: len(result) for name, result in times.items()} == dict.fromkeys(names, 40)
    assert sorted(count for result in times.values() for count in result) == [*range(3 * WARM_UP + 1, len(called) + 1)]


def test_time_interleaved_has_nanoseconds_of_each_work() -> None:
    now = [0]

    def work(spent: int) -> None:
        now[0] += spent

    works = {"slow": partial(work, 10_000_000), "quick": partial(work, 7)}
    times = time_interleaved(works, 3, np.random.default_rng(0), partial(measure_elapsed, clock=lambda: now[0]))
    assert times == {"slow": [10_000_000] * 3, "quick": [7] * 3}
