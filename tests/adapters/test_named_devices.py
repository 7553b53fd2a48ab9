"""`--device` takes every device that a framework has."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frameworks.base import gpu_name, named_device
from frameworks.contract import Capability, MissingDevice
from frameworks.reference import ReferenceFramework
from frameworks.registry import load
from results.record.reading import load as read
from tests.support.suite_runs import judge


class OnNpu(ReferenceFramework):
    """The reference on a machine that has an accelerator of another kind."""

    def devices(self) -> tuple[str, ...]:
        return ("cpu", "npu")


@pytest.mark.parametrize(
    ("asked", "available", "want"),
    [
        ("auto", ("cpu",), "cpu"),
        ("auto", ("cpu", "xpu"), "xpu"),
        ("mps", ("cpu", "mps"), "mps"),
        ("gpu", ("cpu", "cuda"), "cuda"),
        ("gpu", ("cpu", "rocm"), "rocm"),
        ("gpu", ("cpu", "gpu"), "gpu"),
        ("gpu", ("cpu", "tpu"), "gpu"),
        ("tpu", ("cpu",), "tpu"),
    ],
)
def test_named_device_takes_names_of_the_framework(asked: str, available: tuple[str, ...], want: str) -> None:
    assert named_device(asked, available) == want


def test_gpu_name_is_that_of_its_platform() -> None:
    assert gpu_name(cuda=True, rocm=False) == "cuda"
    assert gpu_name(cuda=False, rocm=True) == "rocm"
    assert gpu_name(cuda=False, rocm=False) == "gpu"


def test_run_on_another_accelerator_records_its_name(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    selection = ("conformance/suites/scaling/test_scaling_skip.py", "-k", "skipped_update_is_atomic and sgd")
    completed = judge(
        "--framework=tests.adapters.test_named_devices:OnNpu", "--device=auto", f"--record={record}", *selection
    )
    assert completed.status == 0, completed.lines
    result = read(record)
    assert result.series.device == "npu"
    assert any("--device=npu" in verdict.repro for verdict in result.verdicts)


@pytest.mark.parametrize("asked", ["gpu", "cuda", "xpu"])
def test_load_on_a_missing_device_is_refused_with_those_there_are(asked: str) -> None:
    assert load("tests.adapters.test_named_devices:OnNpu", "npu").device == "npu"
    with pytest.raises(MissingDevice, match=f"sees no device '{asked}' here; it sees cpu, npu"):
        load("tests.adapters.test_named_devices:OnNpu", asked)


# ---------------------------------------------------------------- PyTorch


class Clock:
    """An event of a device: a millisecond passes between two."""

    now = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Clock.now += 1.0
        self.at = Clock.now

    def elapsed_time(self, other: Clock) -> float:
        return other.at - self.at


def fake_backend(**parts: Any) -> SimpleNamespace:
    """The module of an accelerator, such as `torch.xpu`, with one generator."""
    import torch

    states = [torch.zeros(8, dtype=torch.uint8)]

    def keep(state: torch.Tensor, index: int) -> None:
        states[index] = state.clone()

    common = {
        "is_available": lambda: True,
        "synchronize": lambda: None,
        "get_rng_state": lambda index: states[index].clone(),
        "set_rng_state": keep,
        "manual_seed_all": lambda seed: keep(torch.full((8,), seed, dtype=torch.uint8), 0),
        "_is_in_bad_fork": lambda: False,
    }
    return SimpleNamespace(**common | parts)


@pytest.fixture
def xpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An XPU with all that PyTorch's module of it has."""
    torch = pytest.importorskip("torch")
    module = fake_backend(
        current_device=lambda: 0,
        get_device_name=lambda: "Fake Max 1550",
        Event=Clock,
        max_memory_allocated=lambda: 4096,
        reset_peak_memory_stats=lambda: None,
    )
    monkeypatch.setattr(torch, "xpu", module)
    monkeypatch.setattr(torch, "get_device_module", partial(getattr, torch))  # which remembers modules
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    return module


@pytest.mark.usefixtures("xpu")
def test_load_of_torch_has_the_accelerator_of_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    from frameworks.torch.core import devices
    from frameworks.torch.core.devices import Stream

    framework = load("torch", "auto")
    assert (framework.device, devices.available()) == ("xpu", ("cpu", "xpu"))
    assert framework.environment()["device"] == "Fake Max 1550"
    assert devices.has_peak("xpu")
    assert framework.measure_time(lambda: None) == 1_000_000
    stream = Stream("xpu", 7)
    assert set(stream.states["xpu"].tolist()) == {7}
    before = devices.module("xpu").get_rng_state(0)
    with stream.open():
        devices.module("xpu").set_rng_state(before + 1, 0)
    assert set(stream.states["xpu"].tolist()) == {1}
    assert devices.module("xpu").get_rng_state(0).equal(before)
    with pytest.raises(MissingDevice, match="torch sees no device 'cuda' here; it sees cpu, xpu"):
        load("torch", "cuda")
    import torch

    monkeypatch.delattr(torch, "accelerator")
    assert devices.available() == ("cpu", "xpu")


def test_load_of_torch_on_an_accelerator_without_events_peak_and_model(
    monkeypatch: pytest.MonkeyPatch, xpu: SimpleNamespace
) -> None:
    import torch

    from frameworks.torch import declarations
    from frameworks.torch.core import devices

    monkeypatch.setattr(torch, "xpu", fake_backend())
    monkeypatch.setattr(declarations, "multiplies_in_tf32", lambda _: False)
    del xpu
    framework = load("torch", "xpu")
    assert not devices.has_peak("xpu")
    assert framework.environment()["device"] == "xpu"
    assert framework.measure_time(lambda: None) > 0
    for capability in (Capability.PEAK_BYTES, Capability.TF32):
        assert not framework.declares(capability).supported


# ---------------------------------------------------------------- the others


@pytest.mark.parametrize(
    ("types", "cuda", "want"),
    [
        (["CPU"], True, {"cpu": "/CPU:0"}),
        (["CPU", "GPU", "GPU"], True, {"cpu": "/CPU:0", "cuda": "/GPU:0"}),
        (["CPU", "XLA_CPU", "GPU"], False, {"cpu": "/CPU:0", "gpu": "/GPU:0"}),
        (["CPU", "TPU"], False, {"cpu": "/CPU:0", "tpu": "/TPU:0"}),
    ],
)
def test_available_of_tensorflow_are_the_listed_types(
    monkeypatch: pytest.MonkeyPatch, types: list[str], cuda: bool, want: dict[str, str]
) -> None:
    tf = pytest.importorskip("tensorflow")
    from frameworks.tf.core import settings

    listed = [SimpleNamespace(device_type=kind) for kind in types]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda: listed)
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: cuda)
    monkeypatch.setattr(tf.test, "is_built_with_rocm", lambda: False)
    assert {name: settings.place(name) for name in settings.available()} == want


@pytest.mark.parametrize(
    ("backend", "there", "want"),
    [
        ("cpu", {"cpu"}, {"cpu": "cpu"}),
        ("gpu", {"cpu", "cuda"}, {"cpu": "cpu", "cuda": "cuda"}),
        ("gpu", {"cpu", "rocm"}, {"cpu": "cpu", "rocm": "rocm"}),
        ("tpu", {"cpu", "tpu"}, {"cpu": "cpu", "tpu": "tpu"}),
        ("METAL", {"cpu", "METAL"}, {"cpu": "cpu", "metal": "METAL"}),
    ],
)
def test_platforms_of_jax_are_those_found(
    monkeypatch: pytest.MonkeyPatch, backend: str, there: set[str], want: dict[str, str]
) -> None:
    jax = pytest.importorskip("jax")
    from frameworks.jax.core import settings

    def find(platform: str) -> list[str]:
        if platform not in there:
            raise RuntimeError(f"Unknown backend: '{platform}' requested")
        return [platform]

    monkeypatch.setattr(jax, "devices", find)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert settings.platforms() == want


@pytest.mark.parametrize(
    ("listed", "custom", "gpus", "rocm", "want"),
    [
        ([], [], 0, False, {"cpu": "cpu"}),
        (["gpu:0", "gpu:1"], [], 2, False, {"cpu": "cpu", "cuda": "gpu"}),
        (["gpu:0"], [], 1, True, {"cpu": "cpu", "rocm": "gpu"}),
        (["cpu", "xpu:0"], [], 0, False, {"cpu": "cpu", "xpu": "xpu"}),
        ([], ["npu:0", "npu:1"], 0, False, {"cpu": "cpu", "npu": "npu"}),
    ],
)
def test_available_of_paddle_are_the_listed_devices(
    monkeypatch: pytest.MonkeyPatch, listed: list[str], custom: list[str], gpus: int, rocm: bool, want: dict[str, str]
) -> None:
    paddle = pytest.importorskip("paddle")
    from frameworks.paddle.core import devices

    monkeypatch.setattr(paddle.device, "get_available_device", lambda: listed)
    monkeypatch.setattr(paddle.device, "get_available_custom_device", lambda: custom)
    monkeypatch.setattr(paddle.device, "is_compiled_with_cuda", lambda: gpus > 0)
    monkeypatch.setattr(paddle.device, "is_compiled_with_rocm", lambda: rocm)
    monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: gpus)
    assert {name: devices.own_name(name) for name in devices.available()} == want
