"""Costs and selections: clauses pass on a twin that costs what it should and fail on one that does not.

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
from threading import Thread

import numpy as np
import pytest

from conformance import timing
from conformance.checks import subprocesses
from conformance.checks.evidence import Abstention, Verdict, Violation
from conformance.checks.subject import Subject, need_device
from conformance.runner import cost, selection
from conformance.runner.jobs import selects
from conformance.runner.plugin import TIMED as TIMED_CLAUSES
from conformance.runner.selection import ALL, CORE, QUICK, Selection, WayTests, chosen_ways, durations, path_of
from conformance.suites.cost import test_cost as cpu_suite
from conformance.suites.cost import test_cost_device as suite
from conformance.test_ids import SUITES, inventory
from conformance.timing import WARM_UP, time_interleaved
from fixtures.data import sincos_batch, token_batch
from fixtures.models import encoder, sincos
from fixtures.recipe import FLOAT16, SGD, Precision, Ranks, Recipe, Recompute
from frameworks.base import measure_elapsed
from frameworks.contract import SUPPORTED, Capability, Declaration, Unsupported
from frameworks.reference import ReferenceFramework
from frameworks.registry import UnknownFramework
from frameworks.ways import FILE, GIVEN, Way, find_installed_ways, load_ways, require_calls, resolve, sets, watch_calls
from results.record.model import Outcome, RunSetup, TestVerdict
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
    monkeypatch.setattr(cost.machine, "instruction_sets", lambda: ("avx2",))
    monkeypatch.setenv("CI", ci)
    (tmp_path / "costs.toml").write_text('processor = "A, avx2"\n[quick]\ntorch = 100.0\n')
    line, result = cost.judge(framework, "quick", spent, tmp_path / "costs.toml")
    assert result is over
    assert line.startswith(f"cost: {spent:.0f} yardsticks of processor time")
    assert "edit the file and say why" in line or not over


def test_judge_of_a_cost_on_other_instruction_sets_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    processor, _ = cost.limits()
    monkeypatch.setattr(cost, "processor_model", lambda: processor.partition(",")[0])
    monkeypatch.setattr(cost.machine, "instruction_sets", lambda: ("avx2",))
    monkeypatch.setenv("CI", "true")
    assert cost.judge("torch", "quick", 1e9) == ("cost: 1000000000 yardsticks of processor time", False)


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


TEST = "scaling.stays-finite/test_holds"
CHOSEN = Selection(quick={TEST: ["1"]}, left_out={TEST: ["0"]})
THREAD = Thread()
LINK = "https://example.org"
PATHS = {
    ("torch", "eager"): "torch-eager",
    ("torch", "compile"): "torch-eager",
    ("paddle", "dygraph"): "paddle-static",
    ("MyLoop", "loop"): "torch-loop",
    ("mine", "fast"): "reference-emulated",
}


def test_selection_has_its_tests_and_core_has_unknown_ones(tmp_path: Path) -> None:
    selection.write(tmp_path / "x.json", CHOSEN)
    chosen = selection.read(tmp_path / "x.json")
    has = {name: [case for case in "0123" if chosen.has(f"{TEST}[{case}]", name)] for name in (QUICK, CORE, ALL)}
    assert has == {QUICK: ["1"], CORE: ["1", "2", "3"], ALL: ["0", "1", "2", "3"]}
    assert selection.read(None).has("a.b/test_c", CORE)


def test_write_of_a_selection_has_a_line_for_each_function(tmp_path: Path) -> None:
    selection.write(tmp_path / "x.json", Selection({"b.c/test_d": ["2", "1"], "a.b/test_c": [""]}, {}))
    expected = '{"quick": {\n"a.b/test_c": [""],\n"b.c/test_d": ["1", "2"]\n},\n"left out of core": {\n\n}}\n'
    assert (tmp_path / "x.json").read_text() == expected


def test_path_of_a_mode_without_a_file_is_the_frameworks_first(tmp_path: Path) -> None:
    assert path_of("torch", "eager", tmp_path) is None
    for name in ("paddle-static", "reference-emulated", "torch-eager", "torch-loop"):
        (tmp_path / f"{name}.json").touch()
    assert {case: getattr(path_of(*case, tmp_path), "stem", "") for case in PATHS} == PATHS


def test_selects_of_arguments_that_select_tests_is_true(tmp_path: Path) -> None:
    for arguments in (["-k", "scaling"], ["-mgpu"], ["a.py::test_b"], [str(tmp_path)], ["--deselect=x"]):
        assert selects(arguments), arguments
    assert not selects(["-x", "--seed=1", "--timeout=5"])


def test_durations_of_a_mode_are_of_the_nearest_baseline(tmp_path: Path) -> None:
    forced = durations("paddle", "dygraph-forced-scaler", "cpu")
    assert forced != durations("paddle", "dygraph", "cpu") != durations("paddle", "nothing", "cpu")
    assert durations("of-somebody-else", "eager", "cpu") == durations("reference", "emulated", "cpu")
    assert durations("torch", "eager", "cpu", tmp_path) == {}


def way(name: str, **calls: dict[str, object]) -> Way:
    technique, _, name = name.partition(".")
    return Way(technique, name, calls or {"json.dumps": {}}, LINK, ("emulated",))


def test_recipe_way_is_that_of_the_technique() -> None:
    recipe = Recipe(clip=1.0, ways=("clip.loop", "save.compressed"))
    assert (recipe.way("clip"), recipe.way("save"), recipe.way("average")) == ("loop", "compressed", "")


@pytest.mark.parametrize(
    ("technique", "recipe", "used"),
    [
        ("clip", Recipe(), False),
        ("clip", Recipe(clip=1.0), True),
        ("autocast", Recipe(precision=Precision("O2", "float16")), False),
        ("autocast", Recipe(precision=Precision("O1", "float16")), True),
        ("recompute", Recipe(recompute=Recompute(2)), True),
        ("backward", Recipe(SGD()), True),
        ("data-parallel", Recipe(ranks=Ranks(2, "optimizer")), True),
        ("data-parallel", Recipe(ranks=Ranks(2, "full")), False),
        ("sharding", Recipe(ranks=Ranks(2, "full")), True),
        ("sharding", Recipe(ranks=Ranks(2, "optimizer")), False),
        ("sharding", Recipe(), False),
    ],
)
def test_recipe_uses_its_techniques(technique: str, recipe: Recipe, used: bool) -> None:
    assert recipe.uses(technique) is used


def test_sets_have_no_technique_twice() -> None:
    a, b, c, d = (way(name) for name in ("clip.a", "clip.b", "save.a", "clip.c"))
    assert sets([a, b, c, d]) == ((a, c), (b,), (d,))
    assert sets([]) == ()


def test_watch_calls_compares_arguments() -> None:
    sorted_keys = Way("save", "sorted", {"json.dumps": {"sort_keys": True}, "json.loads": {}}, LINK, ())
    dumps, loads = resolve("json.dumps"), resolve("json.loads")
    with watch_calls(sorted_keys) as calls:
        dumps({})
        assert set(calls.missing) == {"json.dumps", "json.loads"}
        dumps({}, sort_keys=True)
        assert calls.missing == ("json.loads",)
        loads("1")
    assert calls.missing == ()


@pytest.mark.parametrize(
    ("calls", "act", "missing"),
    [
        ({"json.JSONEncoder": {"indent": 2}}, lambda: resolve("json.JSONEncoder")(indent=2), ()),
        ({"json.dumps": {"indent": GIVEN}}, lambda: resolve("json.dumps")({}), ("json.dumps",)),
        ({"json.dumps": {"indent": GIVEN}}, lambda: resolve("json.dumps")({}, indent=2), ()),
        ({"math.sqrt": {}, "math.floor": {}}, lambda: resolve("math.sqrt")(4.0), ("math.floor",)),
        ({"threading.Thread.name": {}}, lambda: THREAD.name, ("threading.Thread.name",)),
        ({"threading.Thread.name": {}}, lambda: setattr(THREAD, "name", "other"), ()),
    ],
    ids=["constructor", "default", "any value", "without Python code", "property", "setter"],
)
def test_watch_calls_of_a_kind_of_call_notes_it(
    calls: dict[str, dict[str, object]], act: Callable[[], object], missing: tuple[str, ...]
) -> None:
    with watch_calls(Way("save", "some", calls, LINK, ())) as noted:
        act()
    assert noted.missing == missing


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("abc.ABC", r"abc.ABC: a call of ABCMeta cannot be noted"),
        ("fnmatch._compile_pattern", r"_compile_pattern runs its code for new arguments alone"),
    ],
    ids=["class without a constructor", "function whose results are stored, or that a compiler traces"],
)
def test_watch_calls_of_what_does_not_run_at_every_call_raises(call: str, problem: str) -> None:
    with pytest.raises(TypeError, match=problem), watch_calls(Way("save", "x", {call: {}}, LINK, ())):
        pass


def test_find_installed_ways_leaves_out_missing_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = (
        f'[clip.{name}]\ncalls = {{"json.{call}" = {{}}}}\nlink = "x"'
        for name, call in (("gone", "a"), ("here", "dumps"))
    )
    text = "\n".join(('modes = ["m"]', *tables))
    adapter = write_adapter(tmp_path, monkeypatch, text)
    assert [str(item) for item in load_ways(adapter)] == ["clip.gone", "clip.here"]
    assert len({*load_ways(adapter)}) == 2  # subjects, which keep their results by key, have ways
    assert [str(item) for item in find_installed_ways(adapter, "m")] == ["clip.here"]
    assert find_installed_ways(adapter, "other") == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[clip", "ways.toml: "),
        ('modes = ["m"]\n[fly.high]\ncalls = {"a" = {}}\nlink = "x"', "technique: got 'fly', want one of autocast"),
        ('modes = ["m"]\n[clip.a]\ncalls = {}\nlink = "x"', "clip.a: name the calls"),
        ('modes = ["m"]\n[clip.a]\ncalls = {"a" = {}}', "link"),
        ('[clip.a]\ncalls = {"a" = {}}\nlink = "x"', "modes"),
        ('modes = ["m"]\n[clip.a]\ncolour = 1\ncalls = {"a" = {}}\nlink = "x"', "colour"),
        ("modes = 1\nclip = 2", "ways.toml: "),
    ],
)
def test_load_ways_of_a_bad_file_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    with pytest.raises(UnknownFramework) as error:
        load_ways(write_adapter(tmp_path, monkeypatch, text))
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def write_adapter(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    module = f"ways_{abs(hash(text))}"
    (folder / f"{module}.py").write_text("")
    (folder / FILE).write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return f"{module}:Adapter"


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["clip.gone"], "reference has no way 'clip.gone' in mode emulated: one of clip.by-parts"),
        (["set-9"], "has no way 'set-9'"),
        (["set-1", "clip.by-parts"], "want at most one of each technique"),
    ],
)
def test_chosen_ways_of_wrong_names_are_refused(names: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        chosen_ways("reference", ReferenceFramework(), names)


def test_may_use_follows_the_runs_of_a_test() -> None:
    clipped = run_verdict("composition.pairs/a", {"clip": 0.5})
    saved = run_verdict("resume.bit-identical/test_a_saved_run_goes_on", {})
    assert (selection.may_use(clipped, "clip"), selection.may_use(saved, "clip")) == (True, False)
    assert (selection.may_use(clipped, "save"), selection.may_use(saved, "save")) == (False, True)
    assert selection.may_use(run_verdict("a.b/c", {"precision": {"level": "O1"}}), "autocast")
    assert selection.may_use(saved, "backward")


def run_verdict(test: str, recipe: dict[str, object]) -> TestVerdict:
    return TestVerdict(test, test.partition("/")[0], Outcome.PASS, runs=(RunSetup("model", recipe),))


def test_way_tests_of_clipping_are_few() -> None:
    ways = chosen_ways("reference", ReferenceFramework(), ["clip.by-parts"])
    chosen = WayTests(ReferenceFramework(), ways)
    assert 10 < len(chosen.due) < 200


def test_run_with_a_way_records_it(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    chosen = "combination_matches_oracle and clipped and O0 and alone"
    arguments = ("--framework=reference", "--way=clip.by-parts", f"--record={file}", "-k", chosen)
    result = judge(*arguments, "conformance/suites/composition/test_composition.py")
    assert result.status == 0, result.lines
    record = load(file)
    assert record.series.mode == "emulated+clip.by-parts"
    assert all("--way=clip.by-parts" in verdict.repro for verdict in record.verdicts)
    assert all(run.recipe["ways"] == ["clip.by-parts"] for verdict in record.verdicts for run in verdict.runs)


def test_require_calls_of_a_way_that_is_not_called_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'modes = ["m"]\n[sharding.sorted]\ncalls = {"json.dumps" = {sort_keys = true}}\nlink = "x"'
    adapter, recipe = write_adapter(tmp_path, monkeypatch, text), Recipe(ways=("sharding.sorted",))
    with require_calls(adapter, recipe, "sharding"):
        resolve("json.dumps")({}, sort_keys=True)
    with require_calls(adapter, recipe, "data-parallel"):
        pass
    with (
        pytest.raises(RuntimeError, match=r"sharding.sorted: json.dumps was not called"),
        require_calls(adapter, recipe, "sharding"),
    ):
        resolve("json.dumps")({})


def test_run_of_a_mode_collects_no_family_that_the_mode_lacks(tmp_path: Path) -> None:
    package, record = tmp_path / "without_scaling", tmp_path / "r.json"
    package.mkdir()
    (package / "__init__.py").write_text("from frameworks.reference import ReferenceFramework as Adapter", "utf-8")
    (package / "adapter.toml").write_text('lacks = { emulated = ["scaling"] }', "utf-8")
    adapter = f"--framework={package.name}:Adapter"
    result = judge(adapter, f"--record={record}", "-k", "overflow", PYTHONPATH=f"{tmp_path}")
    clauses = {verdict.clause.partition(".")[0] for verdict in load(record).verdicts}
    assert "scaling" not in clauses, result.text
    assert "autocast" in clauses
