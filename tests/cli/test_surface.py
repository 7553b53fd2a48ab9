"""`conformance surface`: what is listed of a framework, what a run records, and how the two are shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from conformance.cli import main
from conformance.surface import usage
from conformance.surface.listing import Listing, Parameter, listed, watched
from conformance.surface.rendering import changes, rows, unused_lines
from conformance.surface.scope import FILE, SurfaceScope, scope_of
from frameworks.adapter_file import FILE as ADAPTER
from frameworks.adapter_file import adapter_file
from frameworks.calls import CallRecorder, class_of, default_text, is_default, kind_of
from frameworks.registry import UnknownFramework, built_in
from results.record.reading import load
from tests.support.fake_framework import BASE, FAKE, NAME, OTHER, SURFACE
from tests.support.suite_runs import ROOT, WORKERS, command, refused, run


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a framework, its base, an adapter that uses it, and the adapter's files."""
    texts = {"fake_frame.py": FAKE, "fake_base.py": BASE, "fake_adapter.py": OTHER, "surface.toml": SURFACE}
    for name, text in {**texts, ADAPTER: 'imports = ["fake_frame", "fake_base"]\n'}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(usage, "FOLDER", tmp_path / "committed")
    for cache in (adapter_file, scope_of):
        cache.cache_clear()
    yield tmp_path
    for name in ("fake_frame", "fake_base", "fake_adapter"):
        sys.modules.pop(name, None)


@pytest.fixture
def scope(fake: Path) -> SurfaceScope:
    """The scope of the adapter in that folder."""
    assert (fake / FILE).is_file()
    return scope_of(NAME)


def recorded(scope: SurfaceScope, work: Callable[[ModuleType], object]) -> dict[str, dict[str, list[str]]]:
    """What is recorded of a function that gets the fake framework."""
    module, lines, listing = import_module("fake_frame"), [], listed(scope)
    profile, before = CallRecorder(watched(listing, scope), lines.append).profile, sys.getprofile()
    sys.setprofile(profile)
    try:
        work(module)
    finally:
        sys.setprofile(before)
    return usage.from_lines(listing, lines).used


def test_public_callables_are_listed_once_with_kinds_and_defaults(scope: SurfaceScope) -> None:
    listing = listed(scope)
    names = {name.removeprefix("fake_frame."): entry.technique for name, entry in listing.callables.items()}
    first = ["Optimizer", "Optimizer.restored", "Optimizer.step", "Optimizer.zero_grad", "SGD", "clip", "policy"]
    assert names == {
        **dict.fromkeys([*first, "recompute"], "optimizers"),
        **dict.fromkeys(["Named", "decorated", "scope", "unlisted"], "others"),
    }
    assert listing.absent == ["fake_frame.Gone"]
    assert listing.callables["fake_frame.SGD"].parameters == {
        "params": Parameter("positional_or_keyword"),
        "lr": Parameter("positional_or_keyword", "0.1", "float"),
        "momentum": Parameter("positional_or_keyword", "0", "int"),
        "mode": Parameter("keyword_only", "Mode.FAST", "Mode"),
        "**more": Parameter("var_keyword"),
    }
    assert [*(listing.callables["fake_frame.Optimizer.zero_grad"].parameters or {})] == ["set_to_none"]
    assert [*(listing.callables["fake_frame.clip"].parameters or {})] == ["grads", "norm", "*rest"]


def test_a_builtin_without_a_signature_is_listed_as_such(scope: SurfaceScope) -> None:
    module: Any = import_module("fake_frame")
    native = type("native", (), {"__module__": "fake_frame", "__init__": getattr})
    module.native = native
    module.__all__ = ["native"]
    listing = listed(scope)
    assert listing.callables["fake_frame.native"].parameters is None
    assert "fake_frame.native: never called, no signature" not in [*unused_lines(listing, scope)]
    assert rows(listing, scope)[0][:3] == ("optimizers", "1", "0")


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (lambda f: f.SGD([1], momentum=0.5), {"SGD": {"": ["called"], "params": ["list"], "momentum": ["number"]}}),
        (lambda f: f.SGD([1], 0.1, 0.0, mode=f.Mode.FAST), {"SGD": {"": ["called"], "params": ["list"]}}),
        (lambda f: f.SGD(None, a=1, b="x"), {"SGD": {"**more": ["a=number", "b='x'"], "params": ["None"]}}),
        (lambda f: f.clip([], 2, 3, None), {"clip": {"*rest": ["None", "number"], "norm": ["number"]}}),
        (lambda f: f.clip_alias([]), {"clip": {"": ["called"], "grads": ["list"]}}),
        (lambda f: f.half([]), {"clip": {"norm": ["number"]}}),
        (lambda f: f.Optimizer.restored([1]), {"Optimizer.restored": {"": ["called"], "state": ["list"]}}),
        (lambda f: f.SGD([]).zero_grad(False), {"Optimizer.zero_grad": {"": ["called"], "set_to_none": ["bool"]}}),
        (lambda f: f.Named(scale=2.0), {"Named": {"": ["called"], "scale": ["number"]}}),
        (lambda f: f.scope("float16").__enter__(), {"scope": {"": ["called"], "dtype": ["'float16'"]}}),
        (lambda f: f.recompute(list, f.policy), {"policy": {"": ["passed"]}, "recompute": {"policy": ["callable"]}}),
        (lambda f: f.recompute(list, f.SGD), {"SGD": {"": ["passed"]}, "recompute": {"policy": ["callable"]}}),
        (lambda f: type("Own", (f.Optimizer,), {})([1]), {"Optimizer": {"": ["called"], "params": ["list"]}}),
    ],
)
def test_values_other_than_defaults_are_recorded(
    scope: SurfaceScope, work: Callable[[ModuleType], object], expected: dict[str, dict[str, list[str]]]
) -> None:
    result = recorded(scope, work)
    for name, parameters in expected.items():
        assert result[f"fake_frame.{name}"].items() >= parameters.items()
        if "" in parameters:
            assert result[f"fake_frame.{name}"] == parameters


def test_the_framework_s_own_calls_do_not_count(scope: SurfaceScope) -> None:
    assert recorded(scope, lambda f: f.SGD([])).keys() == {"fake_frame.SGD"}


def test_strings_are_recorded_up_to_a_number(scope: SurfaceScope) -> None:
    result = recorded(scope, lambda f: [f.scope(f"d{number}").__enter__() for number in range(50)])
    assert len(result["fake_frame.scope"]["dtype"]) == 12


def test_a_recorder_that_fails_does_not_end_the_call(scope: SurfaceScope) -> None:
    listing = listed(scope)
    module = import_module("fake_frame")
    calls = CallRecorder(watched(listing, scope), lambda _: 1 / 0)
    before = sys.getprofile()
    sys.setprofile(calls.profile)
    try:
        assert module.clip([1]) == [1]
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "None"),
        (True, "bool"),
        (2, "number"),
        ("bfloat16", "'bfloat16'"),
        ("two words", "str"),
        (len, "callable"),
        (dict, "callable"),
        ({}, "dict"),
        (Path(), type(Path()).__name__),
        (type("MyTensor", (type("Tensor", (), {}),), {})(), "tensor"),
        (type("dtype", (), {})(), "dtype"),
    ],
)
def test_classes_of_values(value: object, expected: str) -> None:
    assert class_of(value) == expected


@pytest.mark.parametrize(
    ("value", "default", "same"),
    [
        (0.0, 0, True),
        (0, 0.0, True),
        (1, True, False),
        (None, None, True),
        ((1, 2), (1, 2), True),
        ((1, 3), (1, 2), False),
    ],
)
def test_a_default_is_recognised_by_type_and_text(value: object, default: object, same: bool) -> None:
    assert is_default(value, default_text(default), kind_of(default)) is same


def test_a_default_has_the_same_text_in_every_process() -> None:
    assert " at 0x" not in default_text(object())
    assert default_text(test_classes_of_values).endswith("test_surface.test_classes_of_values")


@pytest.mark.slow
def test_a_run_with_workers_records_and_its_verdicts_are_those_of_another(fake: Path) -> None:
    pytest.importorskip("xdist")
    chosen = ["conformance/suites/scaling/test_scaling_skip.py", "-k", "inf-sgd or nan-sgd", f"--framework={NAME}"]
    for name, words in (("without", []), ("with", [f"--surface={fake / 'found.json'}", *WORKERS, "-n2"])):
        ended = run([*command(*chosen, f"--record={fake / name}.json"), *words], PYTHONPATH=f"{fake}")
        assert ended.status == 0, ended.lines
    without, recorded_too = (load(fake / f"{name}.json") for name in ("without", "with"))
    assert without.verdicts
    assert [(v.test, v.outcome, v.checks) for v in recorded_too.verdicts] == [
        (v.test, v.outcome, v.checks) for v in without.verdicts
    ]
    result = usage.load(fake / "found.json")
    assert result.used == {"fake_frame.SGD": {"": ["called"], "lr": ["number"], "params": ["list"]}}


def test_the_command_counts_lists_and_compares(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["surface", NAME, "--json"]) == 0
    old = json.loads(capsys.readouterr().out)
    recording = fake / "found.json.gz"
    used = {"fake_frame.SGD": {"": ["called"], "lr": ["number", "tensor"]}, "fake_frame.gone": {"": ["called"]}}
    usage.store(recording, msgspec.convert({**old, "used": used}, Listing))
    del old["callables"]["fake_frame.SGD"]["parameters"]["momentum"], old["callables"]["fake_frame.clip"]
    old["callables"]["fake_frame.scope"]["parameters"]["dtype"]["default"] = "'float64'"
    old["callables"]["fake_frame.gone"] = old["callables"]["fake_frame.policy"]
    (fake / "old.json").write_text(json.dumps(old), "utf-8")
    assert main(["surface", NAME, str(recording), "--used", "--unused", "--against", str(fake / "old.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "fake_frame.SGD(lr): number, tensor" in lines
    assert "fake_frame.SGD: params, momentum, **more" in lines
    assert "fake_frame.unlisted: never called" in lines
    assert not any(line.startswith("fake_frame.Named") for line in lines)
    assert lines[lines.index("new, not judged") + 1 :] == [
        "- fake_frame.SGD(momentum): new parameter, default 0",
        "- fake_frame.clip: new callable (grads, norm, *rest)",
        "- fake_frame.gone: removed",
        "- fake_frame.scope(dtype): default 'float32', was 'float64'",
    ]
    (row,) = [line.split() for line in lines if line.split()[:1] == ["optimizers"]]
    assert row[1:] == ["8", "1", "16", "1", "1", "14"]


def test_what_is_new_and_used_is_judged(scope: SurfaceScope) -> None:
    new = listed(scope)
    old = msgspec.structs.replace(new, callables={})
    judged = msgspec.structs.replace(new, used={"fake_frame.clip": {"": ["called"]}})
    assert len([*changes(old, new, scope)]) == len([*changes(old, judged, scope)]) + 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["no-such"], "unknown framework 'no-such'"),
        (["reference"], "adapter 'reference' has no surface.toml: name one of jax, paddle, tf, torch"),
        ([NAME, "corrupt.json"], "corrupt.json: is no listing of callables"),
        ([NAME, "gone.json"], "gone.json: cannot be read"),
        ([NAME, "--against", "corrupt.json"], "corrupt.json: is no listing of callables"),
        ([NAME, "--against", "."], ".: is not a regular file; name another file"),
    ],
)
def test_what_cannot_be_done_ends_in_one_line(
    fake: Path, words: list[str], problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake / "corrupt.json").write_text('{"framework": 3}', "utf-8")
    monkeypatch.chdir(fake)
    assert problem in refused(capsys, "surface", *words)


@pytest.mark.parametrize("text", ["[techniques", "", 'techniques = ["a"]', "[reasons]"])
def test_a_scope_that_cannot_be_read_ends_in_one_line(
    fake: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (fake / "surface.toml").write_text(text, "utf-8")
    assert str(fake / "surface.toml") in refused(capsys, "surface", NAME)


def test_a_framework_that_is_not_installed_ends_in_one_line(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (fake / "surface.toml").write_text('[techniques]\na = ["no_such_module"]', "utf-8")
    assert "is not installed" in refused(capsys, "surface", NAME)
    ended = run(
        [*command("conformance/suites/scaling/test_scaling.py", f"--framework={NAME}"), "--surface=a"],
        PYTHONPATH=f"{fake}",
    )
    assert ended.status == 2
    assert "is not installed" in ended.lines[-1]


RECORDED = [name for name in built_in() if name != "reference"]


@pytest.mark.parametrize("name", RECORDED)
def test_a_committed_recording_fits_the_scope(name: str) -> None:
    path, scope = usage.committed(name), scope_of(name)
    listing = usage.load(path)
    pairs = [
        (callable_, key) for callable_, entry in listing.callables.items() for key in ("", *(entry.parameters or ()))
    ]
    for glob in scope.reasons:
        one = SurfaceScope(name, frozenset(), {}, {glob: "x"}, [], [])
        assert any(one.reason(*pair) for pair in pairs), glob
    assert {entry.technique for entry in listing.callables.values()} <= scope.techniques.keys()
    assert listing.used.keys() <= listing.callables.keys()
    assert str(ROOT) not in path.read_text("latin-1")


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_pytorch_is_listed() -> None:
    listing = listed(scope_of("torch"))
    parameters = listing.callables["torch.optim.SGD"].parameters or {}
    assert {"params", "lr", "momentum"} <= parameters.keys()
    assert {"torch.amp.GradScaler.unscale_", "torch.utils.checkpoint.checkpoint"} <= listing.callables.keys()


@pytest.mark.parametrize("name", RECORDED)
def test_a_missing_framework_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(UnknownFramework):
        listed(scope_of(name))
        pytest.skip(f"{name} is installed")
    assert f"'{name}' is not installed" in refused(capsys, "surface", name)
