"""Resume: saves in the background."""

import shutil
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from conformance.checks import background_saves as saves
from conformance.checks.api import Subject, Verdict, clause, need, need_rule, train
from conformance.checks.subprocesses import end_process, same_framework
from fixtures.models import exact_stack
from fixtures.recipe import Adam, DynamicScaling, Recipe
from frameworks.contract import Capability, Gate, LiveValues, Point, SaveSeries, ValueSaver

PATIENCE_S = 0.3
"""Seconds in which a second save may begin while the first one is held; less would only miss a false declaration."""


def find_saver(subject: Subject, capability: Capability = Capability.BACKGROUND_SAVES) -> ValueSaver:
    """Return the framework's saver; end the test unless the framework declares the capability as supported."""
    need(subject, capability)
    return need_rule(subject, Capability.SAVED_VALUES, ValueSaver)


@clause("resume.async-is-a-snapshot")
def test_background_save_holds_values_of_its_call(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    saver = find_saver(subject)
    for point in saver.points:
        values = saves.make_kinds(saver, 1.0)
        for shared, series in saves.series_of(saver, tmp_path / point, values):
            values.fill(1.0)
            with saves.hold_save(series, 1, point):
                values.fill(2.0)
                values.fill(4.0)
            series.wait()
            target = saves.make_kinds(saver, saves.UNTOUCHED)
            series.load(1, target)
            loaded, expected = target.read(), saves.fill(target, 1.0)
            for kind in saver.kinds:
                what = f"{kind} of a save held at {point}, overwritten twice after the call, objects: {shared}"
                verdict.equal(loaded[kind], expected[kind], what, f"later-{kind}")


@clause("resume.async-second-save")
def test_two_background_saves_hold_their_own_moments(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    saver = find_saver(subject)
    for point in saver.points:
        values = saves.make_values(saver, 1.0)
        for shared, series in saves.series_of(saver, tmp_path / point, values):
            values.fill(1.0)
            parallel = save_during_save(saver, series, values, point)
            verdict.observe(f"{shared}-{point}", parallel)
            for step in (1, 2) if parallel != "refused" else (1,):
                target = saves.make_values(saver)
                what = f"values of save {step} of two, objects: {shared}"
                series.load(step, target)
                verdict.equal(target.read(), saves.fill(target, step), what, f"other-moment-{shared}")


def save_during_save(saver: ValueSaver, series: SaveSeries, values: LiveValues, point: Point) -> str:
    """Save values of 1 as step 1, and values of 2 as step 2 while the writer of step 1 is held.

    Return "own-objects" if the second save runs at the same time, "waits" if it waits for it, "refused" if it raises.
    """
    second, parallel = Gate(saver.points[0]), threading.Event()

    def release(first: Gate) -> None:
        if second.reached.wait(PATIENCE_S):
            parallel.set()
        first.open()
        second.open()

    with saves.hold_save(series, 1, point) as first:
        values.fill(2.0)
        thread = threading.Thread(target=release, args=(first,))
        thread.start()
        error = saves.find_error(series.save, 2, second)
        values.fill(4.0)
        thread.join()
    series.wait()
    return "refused" if error is not None else "own-objects" if parallel.is_set() else "waits"


@clause("resume.async-holds-everything")
def test_background_save_holds_names_of_plain_save(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    saver = find_saver(subject)
    for point in saver.points:
        for shared in saver.objects:
            values = saves.make_values(saver, 1.0)
            series = saver.series(tmp_path / point / shared, values, shared)
            series.save(1, Gate())
            series.wait()
            values.add("late", "tensor", 1.0, 3)
            values.fill(2.0)
            series.save(2)
            with saves.hold_save(series, 3, point):
                values.fill(4.0)
            series.wait()
            series.close()
            target = saves.make_values(saver, saves.UNTOUCHED, {"value": 4, "late": 3})
            what = f"with a value added after a first save in the background, objects: {shared}"
            series.load(2, target)
            verdict.equal(target.read(), saves.fill(target, 2.0), f"plain save {what}", "plain-save-differs")
            target.fill(saves.UNTOUCHED)
            error = saves.find_error(series.load, 3, target)
            verdict.holds(error is None, f"save in the background {what}, is loaded", error, "no error", "not-loaded")
            verdict.equal(target.read(), saves.fill(target, 2.0), f"save in the background {what}", "late-differs")


CHANGES: Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]] = {
    "more-names": ({"value": 4}, {"value": 4, "other": 4}),
    "fewer-names": ({"value": 4, "other": 4}, saves.SIZES),
    "larger": ({"value": 4}, {"value": 6}),
    "smaller": ({"value": 6}, saves.SIZES),
}
"""Sizes of tensors in two saves into one place."""


@clause("resume.overwrite-is-whole")
@pytest.mark.parametrize("change", CHANGES)
def test_second_save_replaces_first(subject: Subject, verdict: Verdict, tmp_path: Path, change: str) -> None:
    saver, (before, after) = find_saver(subject, Capability.SAVED_VALUES), CHANGES[change]
    for gate in (None, Gate()) if saver.points else (None,):
        for shared in saver.objects:
            folder = tmp_path / f"{gate is None}-{shared}"
            refused = None
            for value, sizes in ((1.0, before), (2.0, after)):
                series = saver.series(folder, saves.make_values(saver, value, sizes), shared)
                refused = saves.find_error(series.save, 1, gate) or saves.find_error(series.wait)
                series.close()
            target = saves.make_values(saver, saves.UNTOUCHED, before if refused else after)
            error = saves.find_error(series.load, 1, target)
            what = f"second save into one place, in the {'foreground' if gate is None else 'background'}"
            verdict.holds(error is None, f"{what}, is loaded, objects: {shared}", error, "no error", "not-loaded")
            expected = saves.fill(target, 1.0 if refused else 2.0)
            verdict.equal(target.read(), expected, f"{what}, objects: {shared}", "values-of-two")


@clause("resume.overwrite-is-whole")
def test_interrupted_overwrite_is_refused_or_leaves_first_save(
    subject: Subject, verdict: Verdict, tmp_path: Path
) -> None:
    saver = find_saver(subject)
    for point in saver.points:
        values = saves.make_values(saver, 1.0)
        for shared, series in saves.series_of(saver, tmp_path / point, values):
            values.fill(1.0)
            series.save(1, Gate())
            series.wait()
            values.fill(2.0)
            gate = Gate(point, OSError("the disk is full"))
            gate.open()
            saves.find_error(series.save, 1, gate)
            saves.find_error(series.wait)
            target = saves.make_values(saver)
            error = saves.find_error(series.load, 1, target)
            verdict.observe(f"{shared}-{point}", "refused" if error else "first save")
            if error is None:
                what = f"first save, after a second one failed at {point}, objects: {shared}"
                verdict.equal(target.read(), saves.fill(target, 1.0), what, "unfinished-save-loads")


RENAMED = (("dense", "model_dense"), ("dense_3", "dense_4"))
"""Names of a saved value and of the value that it is loaded into."""


@clause("resume.load-places-everything")
def test_load_into_other_names_is_refused(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    saver = find_saver(subject, Capability.SAVED_VALUES)
    for saved, wanted in RENAMED:
        series = saver.series(
            tmp_path / saved, saves.make_values(saver, 2.0, {"common": 4, saved: 4}), saver.objects[0]
        )
        series.save(1)
        series.close()
        target = saves.make_values(saver, saves.UNTOUCHED, {"common": 4, wanted: 4})
        error = saves.find_error(series.load, 1, target)
        what = f"values after a saves.load of {saved} into {wanted}, with no word"
        verdict.holds(error is None or isinstance(error, ValueError), f"{saved}: refusal", error, "a clear error")
        if error is None:
            verdict.equal(target.read(), saves.fill(target, 2.0), what, "silently-skipped")
        verdict.observe(saved, "refused" if error else "placed")


def end(subject: Subject, folder: Path, ending: saves.Ending) -> CompletedProcess[str]:
    """Return the end of a process that saves below a folder."""
    task = saves.EndingTask(*same_framework(subject), folder / "saves", ending)
    return end_process(task, folder / "process")


@clause("resume.async-killed")
def test_older_save_survives_kill_inside_save(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    saver = find_saver(subject)
    process = end(subject, tmp_path, "killed")
    verdict.equal(process.returncode, -signal.SIGKILL, f"end of the process: {process.stderr[-500:]}", "not-killed")
    for shared, point, running in saves.list_running_saves(saver):
        series = saver.series(tmp_path / "saves" / f"{shared}-{point}-{running}", saves.make_values(saver), shared)
        what = f"after a kill inside save {running} at {point}, objects: {shared}"
        if (latest := series.latest()) is not None or (
            shared == saver.objects[0] and saves.rule_of(saver).latest != "none"
        ):
            verdict.equal(latest, 1, f"latest step {what}", "unfinished-latest")
        for step in range(1, running + 1):
            target = saves.make_values(saver)
            error = saves.find_error(series.load, step, target)
            if running == 2:
                verdict.equal(error is None, step == 1, f"step {step} is loaded {what}", "other-save-loads")
            expected = saves.fill(target, saves.UNTOUCHED if error else 1.0)
            verdict.equal(target.read(), expected, f"step {step} {what}", "unfinished-save-loads")
        series.close()


@clause("resume.async-failure-is-told")
def test_error_of_background_save_is_raised(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    saver = find_saver(subject)
    for call in saves.CALLS[saves.rule_of(saver).told_at]:
        for shared in saver.objects:
            error = saves.find_reported_error(saver, tmp_path / call / shared, shared, call)
            what = f"error of the writer, by {call}, objects: {shared}"
            verdict.holds(error is not None, f"{what}: raised", error, "an error", "silent")
            kind = type(error).__name__
            verdict.holds(isinstance(error, Exception), f"{what}: kind of error", kind, "an Exception", "no-exception")


@clause("resume.async-failure-is-told")
def test_unwritable_folder_of_background_save_is_reported(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    saver = find_saver(subject)
    for shared in saver.objects:
        series = saver.series(tmp_path / shared, saves.make_values(saver, 1.0), shared)
        shutil.rmtree(tmp_path / shared, ignore_errors=True)
        (tmp_path / shared).write_text("a file where the folder was")
        error = saves.find_error(series.save, 1, Gate()) or saves.find_error(series.wait)
        error = error or saves.find_error_of_next_save(series)
        verdict.holds(error is not None, f"unwritable folder, objects: {shared}", error, "an error", "silent")
        saves.find_error(series.close)


@clause("resume.async-failure-is-told")
def test_process_reports_failed_background_save(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    find_saver(subject)
    process = end_process(
        saves.EndingTask(*same_framework(subject), tmp_path / "saves", "failed"), tmp_path / "process"
    )
    verdict.observe("exit code", process.returncode)
    reported = process.returncode != 0 or saves.CAUSE in process.stderr
    what = "a process whose save failed, and that never asks, ends with an exit code or a message"
    verdict.holds(reported, what, f"exit code {process.returncode}: {process.stderr[-200:]}", "a failure", "silent-end")


@clause("resume.async-end-of-process")
@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_process_finishes_its_background_save(
    subject: Subject, verdict: Verdict, tmp_path: Path, ending: saves.Ending
) -> None:
    saver = find_saver(subject)
    process = end(subject, tmp_path, ending)
    verdict.equal(process.returncode != 0, ending == "raises", "the process ends with a failing exit code", "exit-code")
    target = saves.make_values(saver, saves.UNTOUCHED, {"value": saves.LARGE})
    error = saves.find_error(saver.series(tmp_path / "saves", target, saver.objects[0]).load, 1, target)
    verdict.observe("rule", "finishes" if error is None else "loses")
    verdict.holds(error is None, f"save of a process that {ending}", error, "a whole save", "lost")
    verdict.equal(target.read(), saves.fill(target, 1.0), f"values of a process that {ending}", "other-values")


@clause("resume.async-changes-nothing")
def test_training_during_background_save_equals_training_without(
    subject: Subject, verdict: Verdict, tmp_path: Path
) -> None:
    saver, recipe = find_saver(subject), Recipe(Adam(1e-3), scaling=DynamicScaling(initial=2.0**10, interval=3))
    for point in saver.points:
        for shared in saver.objects:
            saved, plain = (subject.trainer(exact_stack(8, 3, dropout=0.5), recipe) for _ in range(2))
            for run in (saved, plain):
                train(run, 0, 2)
            series = saver.series(tmp_path / point / shared, saved.view(LiveValues), shared)
            with saves.hold_save(series, 1, point):
                for run in (saved, plain):
                    train(run, 2, 5)
            series.wait()
            series.close()
            states = subject.state(saved), subject.state(plain)
            verdict.same_state(*states, f"training state after updates during a save held at {point}", "run-differs")


@clause("resume.async-rules")
def test_observe_rule_of_background_saves(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    saver = find_saver(subject)
    rule, shared = saves.rule_of(saver), saver.objects[0]
    calls = tuple(
        call for call in saves.CALLS["wait"] if saves.find_reported_error(saver, tmp_path / call, shared, call)
    )
    verdict.observe("raised by", calls)
    verdict.equal(calls, saves.CALLS[rule.told_at], "calls that raise an error, compared with the declared ones")
    values = saves.make_values(saver, 1.0)
    series = saver.series(tmp_path / "two", values, shared)
    parallel = save_during_save(saver, series, values, saver.points[-1])
    verdict.observe("second save", parallel)
    verdict.equal(parallel, rule.parallel_saves, "second save, compared with the declared rule")
    with saves.hold_save(series, 3, saver.points[-1]):
        latest = series.latest()
    series.wait()
    series.close()
    named = {None: "none", 2: "finished", 3: "running"}.get(latest, str(latest))
    verdict.observe("latest", named)
    verdict.equal(named, rule.latest, "latest during a save, compared with the declared rule")
