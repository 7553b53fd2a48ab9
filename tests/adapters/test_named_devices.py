"""Names of devices in every framework, the variables that JAX reads for a GPU, and mode keras without Keras."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from frameworks.base import gpu_name, named_device
from frameworks.contract import Capability, MissingDevice
from frameworks.reference import ReferenceFramework
from frameworks.registry import load
from results.record.reading import load as read
from tests.support.suite_runs import ROOT, judge

# Loaded by its path, since its package imports JAX, which these tests do not require.
_MODULE = run_path(str(ROOT / "frameworks" / "jax" / "core" / "gpu_variables.py"))
KERNELS, variables = _MODULE["KERNELS"], _MODULE["variables"]


class OnNpu(ReferenceFramework):
    """The reference on a machine with an NPU."""

    def devices(self) -> tuple[str, ...]:
        return ("cpu", "npu")


@pytest.mark.parametrize(
    ("requested", "available", "expected"),
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
def test_named_device_takes_names_of_the_framework(requested: str, available: tuple[str, ...], expected: str) -> None:
    assert named_device(requested, available) == expected


def test_gpu_name_is_that_of_its_platform() -> None:
    assert [gpu_name(cuda=cuda, rocm=not cuda) for cuda in (True, False)] == ["cuda", "rocm"]
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


@pytest.mark.parametrize("requested", ["gpu", "cuda", "xpu"])
def test_load_on_a_missing_device_is_refused_with_those_there_are(requested: str) -> None:
    assert load("tests.adapters.test_named_devices:OnNpu", "npu").device == "npu"
    with pytest.raises(MissingDevice, match=f"sees no device '{requested}' here; it sees cpu, npu"):
        load("tests.adapters.test_named_devices:OnNpu", requested)


class Clock:
    """A fake event of a device; one millisecond passes between two records."""

    now = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Clock.now += 1.0
        self.at = Clock.now

    def elapsed_time(self, other: Clock) -> float:
        return other.at - self.at


def install_xpu(monkeypatch: pytest.MonkeyPatch, **attributes: Any) -> None:
    """Installs a fake `torch.xpu` with these attributes and those that every accelerator's module has."""
    torch = pytest.importorskip("torch")
    common = {
        "is_available": lambda: True,
        "get_rng_state": Mock(return_value=torch.zeros(8, dtype=torch.uint8)),
        "_is_in_bad_fork": lambda: False,
        **{name: Mock() for name in ("synchronize", "set_rng_state", "manual_seed_all")},
    }
    monkeypatch.setattr(torch, "xpu", SimpleNamespace(**common | attributes))
    monkeypatch.setattr(torch, "get_device_module", partial(getattr, torch))  # the original caches modules
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))


def test_load_of_torch_has_the_accelerator_of_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    install_xpu(
        monkeypatch,
        current_device=lambda: 0,
        get_device_name=lambda: "Fake Max 1550",
        Event=Clock,
        max_memory_allocated=lambda: 4096,
        reset_peak_memory_stats=lambda: None,
    )
    from frameworks.torch.core import settings as devices

    framework = load("torch", "auto")
    assert (framework.device, devices.available()) == ("xpu", ("cpu", "xpu"))
    assert framework.environment()["device"] == "Fake Max 1550"
    assert devices.has_peak("xpu")
    assert framework.measure_time(lambda: None) == 1_000_000
    with pytest.raises(MissingDevice, match="torch sees no device 'cuda' here; it sees cpu, xpu"):
        load("torch", "cuda")
    monkeypatch.delattr("torch.accelerator")
    assert devices.available() == ("cpu", "xpu")


def test_load_of_torch_on_an_accelerator_without_events_peak_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    install_xpu(monkeypatch)
    monkeypatch.setattr("frameworks.torch.declarations.multiplies_in_tf32", lambda _: False)
    framework = load("torch", "xpu")
    assert framework.environment()["device"] == "xpu"
    assert framework.measure_time(lambda: None) > 0
    for capability in (Capability.PEAK_BYTES, Capability.TF32):
        assert not framework.declares(capability).supported


@pytest.mark.parametrize(
    ("types", "cuda", "expected"),
    [
        (["CPU"], True, {"cpu": "/CPU:0"}),
        (["CPU", "GPU", "GPU"], True, {"cpu": "/CPU:0", "cuda": "/GPU:0"}),
        (["CPU", "XLA_CPU", "GPU"], False, {"cpu": "/CPU:0", "gpu": "/GPU:0"}),
        (["CPU", "TPU"], False, {"cpu": "/CPU:0", "tpu": "/TPU:0"}),
    ],
)
def test_available_of_tensorflow_are_the_listed_types(
    monkeypatch: pytest.MonkeyPatch, types: list[str], cuda: bool, expected: dict[str, str]
) -> None:
    tf = pytest.importorskip("tensorflow")
    from frameworks.tf.core import settings as devices

    listed = [SimpleNamespace(device_type=name) for name in types]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda: listed)
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: cuda)
    monkeypatch.setattr(tf.test, "is_built_with_rocm", lambda: False)
    assert {name: devices.place(name) for name in devices.available()} == expected


@pytest.mark.parametrize(
    ("backend", "present", "expected"),
    [
        ("cpu", {"cpu"}, {"cpu": "cpu"}),
        ("gpu", {"cpu", "cuda"}, {"cpu": "cpu", "cuda": "cuda"}),
        ("gpu", {"cpu", "rocm"}, {"cpu": "cpu", "rocm": "rocm"}),
        ("tpu", {"cpu", "tpu"}, {"cpu": "cpu", "tpu": "tpu"}),
        ("METAL", {"cpu", "METAL"}, {"cpu": "cpu", "metal": "METAL"}),
    ],
)
def test_platforms_of_jax_are_the_present_backends(
    monkeypatch: pytest.MonkeyPatch, backend: str, present: set[str], expected: dict[str, str]
) -> None:
    jax = pytest.importorskip("jax")
    from frameworks.jax.core import settings

    def list_devices(platform: str) -> list[str]:
        if platform not in present:
            raise RuntimeError(f"Unknown backend: '{platform}' requested")
        return [platform]

    monkeypatch.setattr(jax, "devices", list_devices)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert settings.platforms() == expected


@pytest.mark.parametrize(
    ("listed", "custom", "gpus", "rocm", "expected"),
    [
        ([], [], 0, False, {"cpu": "cpu"}),
        (["gpu:0", "gpu:1"], [], 2, False, {"cpu": "cpu", "cuda": "gpu"}),
        (["gpu:0"], [], 1, True, {"cpu": "cpu", "rocm": "gpu"}),
        (["cpu", "xpu:0"], [], 0, False, {"cpu": "cpu", "xpu": "xpu"}),
        ([], ["npu:0", "npu:1"], 0, False, {"cpu": "cpu", "npu": "npu"}),
    ],
)
def test_available_of_paddle_are_the_listed_devices(
    monkeypatch: pytest.MonkeyPatch,
    listed: list[str],
    custom: list[str],
    gpus: int,
    rocm: bool,
    expected: dict[str, str],
) -> None:
    paddle = pytest.importorskip("paddle")
    from frameworks.paddle.core import settings as devices

    monkeypatch.setattr(paddle.device, "get_available_device", lambda: listed)
    monkeypatch.setattr(paddle.device, "get_available_custom_device", lambda: custom)
    monkeypatch.setattr(paddle.device, "is_compiled_with_cuda", lambda: gpus > 0)
    monkeypatch.setattr(paddle.device, "is_compiled_with_rocm", lambda: rocm)
    monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: gpus)
    assert {name: devices.own_name(name) for name in devices.available()} == expected


def test_variables_of_a_gpu_come_before_those_of_the_user(tmp_path: Path) -> None:
    preallocate, driver = "XLA_PYTHON_CLIENT_PREALLOCATE", tmp_path / "version"
    assert variables({"XLA_FLAGS": "--a"}, driver) == {preallocate: "false"}
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15\n")
    adapters, user = variables({}, driver), "--xla_gpu_autotune_level=4"
    assert adapters["XLA_FLAGS"] == KERNELS
    assert variables({"XLA_FLAGS": user}, driver)["XLA_FLAGS"] == f"{KERNELS} {user}"
    assert variables(adapters, driver) == {preallocate: "false"}
    assert variables({preallocate: "true"}, driver)[preallocate] == "true"


KERAS_ON_TENSORFLOW = SimpleNamespace(config=SimpleNamespace(backend=lambda: "tensorflow"))


@pytest.mark.parametrize(
    ("framework", "installed", "reason", "default"),
    [
        ("jax", False, "needs Keras, which is not installed: pip install --no-deps keras h5py namex optree", "jit"),
        ("jax", True, "needs Keras on JAX, and in this process it runs on tensorflow", "jit"),
        ("torch", True, "needs Keras on PyTorch, and in this process it runs on tensorflow", "eager"),
    ],
)
def test_adapter_in_mode_keras_without_keras_on_the_framework_is_refused(
    framework: str, installed: bool, reason: str, default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(framework)
    module: Any = pytest.importorskip(f"frameworks.{framework}")
    if framework == "jax":
        monkeypatch.setattr(module, "is_installed", lambda _: installed)
    else:
        libraries: Any = pytest.importorskip("frameworks.torch.framework")
        monkeypatch.setattr(libraries, "version", lambda _: "3.15.1")
    if installed:
        monkeypatch.setitem(sys.modules, "keras", KERAS_ON_TENSORFLOW)
    with pytest.raises(ValueError, match=f"{reason}$"):
        module.adapter("cpu", "keras")
    assert module.adapter("cpu").mode == default
