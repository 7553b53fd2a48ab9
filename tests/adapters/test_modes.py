"""Modes and devices of the adapters."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fixtures.data import vector_batch
from fixtures.model import Head, Heads, LayerNorm, Model, Residual, SelfAttention
from fixtures.recipe import Recipe
from frameworks.base import gpu_name, named_device
from frameworks.contract import Capability, MissingDevice, PostTraining
from frameworks.reference import ReferenceFramework
from frameworks.registry import load
from frameworks.torch.core.settings import COMPILE, DYNAMIC, compiled
from frameworks.torch.distributed import deepspeed_start
from frameworks.torch.quantization import transformers_models
from results.record.reading import load as read
from tests.support.suite_runs import ROOT, judge

_SPEC = spec_from_file_location("gpu_variables", ROOT / "frameworks" / "jax" / "core" / "gpu_variables.py")
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = module_from_spec(_SPEC)  # by its place: its package imports JAX, which the suite's own tests do without
_SPEC.loader.exec_module(_MODULE)
KERNELS, variables = _MODULE.KERNELS, _MODULE.variables


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    place = tmp_path / "version"
    place.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15\n")
    return place


def test_variables_without_a_gpu_are_no_flags(tmp_path: Path) -> None:
    assert variables({"XLA_FLAGS": "--a"}, tmp_path / "none") == {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def test_variables_on_a_gpu_add_to_those_of_the_user(driver: Path) -> None:
    first = variables({}, driver)
    assert first["XLA_FLAGS"] == KERNELS
    user = "--xla_gpu_autotune_level=4"
    assert variables({"XLA_FLAGS": user}, driver)["XLA_FLAGS"] == f"{KERNELS} {user}", "the last one counts"
    assert variables(first, driver) == {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, "a process of such a process"
    assert variables({"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, driver)["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"


ELSEWHERE = SimpleNamespace(config=SimpleNamespace(backend=lambda: "tensorflow"))


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
        monkeypatch.setattr(module, "installed", lambda _: installed)
    else:
        libraries: Any = pytest.importorskip("frameworks.torch.libraries")
        monkeypatch.setattr(libraries, "version", lambda _: "3.15.1")
    if installed:
        monkeypatch.setitem(sys.modules, "keras", ELSEWHERE)
    with pytest.raises(ValueError, match=f"{reason}$"):
        module.adapter("cpu", "keras")
    assert module.adapter("cpu").mode == default


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
    ended = judge("--framework=tests.adapters.test_modes:OnNpu", "--device=auto", f"--record={record}", *selection)
    assert ended.status == 0, ended.lines
    result = read(record)
    assert result.series.device == "npu"
    assert any("--device=npu" in verdict.repro for verdict in result.verdicts)


@pytest.mark.parametrize("asked", ["gpu", "cuda", "xpu"])
def test_load_on_a_missing_device_is_refused_with_those_there_are(asked: str) -> None:
    assert load("tests.adapters.test_modes:OnNpu", "npu").device == "npu"
    with pytest.raises(MissingDevice, match=f"sees no device '{asked}' here; it sees cpu, npu"):
        load("tests.adapters.test_modes:OnNpu", asked)


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
    assert framework.timed(lambda: None) == 1_000_000
    stream = Stream("xpu", 7)
    assert set(stream.states["xpu"].tolist()) == {7}
    before = devices.module("xpu").get_rng_state(0)
    with stream.drawn():
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
    assert framework.timed(lambda: None) > 0
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


pytest.importorskip("torch")


# compiled
ATTENTION = Model(
    "attention",
    (Residual((LayerNorm(), SelfAttention(2))), Heads((Head("output", 4),))),
    (5, 8),
    (("output", "cross_entropy"),),
    token_level=True,
)
SIZES = ((3, 5), (4, 7), (6, 9), (2, 5))
"""Batch sizes, and lengths of the sequences."""


def programs() -> int:
    """Graphs that this process has compiled."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def losses(mode: str) -> list[float]:
    run = load("torch", "cpu", mode).trainer(ATTENTION, Recipe())
    return [run.update((vector_batch(size, length, 8),)).loss for size, length in SIZES]


def test_one_program_trains_on_every_size() -> None:
    before = programs()
    result = losses(DYNAMIC)
    assert programs() - before == 1
    np.testing.assert_allclose(result, losses("eager"), rtol=1e-5)


def by_size(x: torch.Tensor) -> torch.Tensor:
    """Another program for more than four rows."""
    return x.exp() if x.shape[0] > 4 else x.neg()


def test_compiled_for_all_sizes_has_one_program_but_for_sizes_that_pytorch_tells_apart() -> None:
    call = compiled(by_size, DYNAMIC)
    for rows, columns in ((3, 2), (1, 2), (3, 3), (3, 0)):
        assert call(torch.ones(rows, columns)).equal(-torch.ones(rows, columns))
    assert call(torch.ones(3, 2, dtype=torch.float64)).dtype == torch.float64
    with pytest.raises(RuntimeError, match="recompile"):
        call(torch.ones(7, 2))
    call, before = compiled(by_size, COMPILE), programs()
    call(torch.ones(3, 2))
    call(torch.ones(7, 2))
    assert programs() - before == 2


# deepspeed: what ranks need is made ready once, before any test, whoever was killed in the middle of it
FOLDER = "deepspeed_shm_comm"


class Builds:
    """Stands for the compiler: counts its runs, and leaves what a build leaves unless it is told to fail."""

    def __init__(self, root: Path) -> None:
        self.count = 0
        self.failure: Exception | None = None
        self._root = root

    def run(self, *args: Any, **kwargs: Any) -> None:
        self.count += 1
        if self.failure is not None:
            raise self.failure
        folder = self._root / FOLDER
        folder.mkdir(exist_ok=True)
        (folder / f"{FOLDER}.so").touch()


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builds:
    made = Builds(tmp_path)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(deepspeed_start, "version", {"deepspeed": "1.0", "torch": "1.0"}.get)
    monkeypatch.setattr(subprocess, "run", made.run)
    return made


def test_prepare_compiles_once_for_a_version_and_removes_the_lock_of_a_killed_build(
    builds: Builds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / FOLDER / "lock"
    lock.parent.mkdir()
    lock.touch()
    deepspeed_start._prepare()
    deepspeed_start._prepare()
    assert (builds.count, lock.exists()) == (1, False)
    monkeypatch.setattr(deepspeed_start, "version", {"deepspeed": "1.1", "torch": "1.0"}.get)
    deepspeed_start._prepare()
    assert builds.count == 2


@pytest.mark.parametrize(
    "failure",
    [
        subprocess.TimeoutExpired("build", deepspeed_start.BUILD_S),
        subprocess.CalledProcessError(1, "build", stderr="no compiler"),
        OSError("no processes left"),
    ],
    ids=["too-long", "fails", "does-not-start"],
)
def test_a_build_that_fails_is_reported_and_tried_again(builds: Builds, failure: Exception) -> None:
    builds.failure = failure
    with pytest.raises(RuntimeError, match="could not be compiled"):
        deepspeed_start._prepare()
    builds.failure = None
    deepspeed_start._prepare()
    assert builds.count == 2


def test_where_deepspeed_is_missing_its_ranks_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed_start, "installed", lambda: False)
    deepspeed_start.problem.cache_clear()
    try:
        with pytest.raises(RuntimeError, match=r"pip install --no-build-isolation deepspeed"):
            deepspeed_start.require()
    finally:
        deepspeed_start.problem.cache_clear()


# transformers: models loaded in eight bits, where the libraries for it are not installed, or one of them
@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> tuple[str, ...]:
    """These libraries are not installed, all others are."""
    names: tuple[str, ...] = request.param

    def find(name: str) -> ModuleSpec | None:
        return None if name in names else importlib.util.spec_from_loader(name, None)

    monkeypatch.setattr(transformers_models, "find_spec", find)
    return names


@pytest.mark.parametrize(
    "missing", [("bitsandbytes",), ("transformers", "accelerate", "bitsandbytes")], indirect=True, ids=["one", "all"]
)
def test_what_is_not_installed_is_named(missing: tuple[str, ...]) -> None:
    framework = load("torch", "cpu", transformers_models.MODE)
    declared = framework.declares(Capability.LOAD_INT8)
    assert not declared.supported
    assert declared.reason == f"{', '.join(missing)}: not installed: pip install {' '.join(missing)}"
    assert not framework.rule(PostTraining).rules()


@pytest.mark.usefixtures("missing")
@pytest.mark.parametrize("missing", [()], indirect=True, ids=["nothing"])
def test_load_int8_is_offered_on_a_cpu_in_its_own_mode_alone() -> None:
    assert transformers_models.TransformersPostTraining("cpu").rules()
    assert not transformers_models.TransformersPostTraining("cuda").rules()
    assert not transformers_models.refused()
    declared = load("torch", "cpu", "eager").declares(Capability.LOAD_INT8)
    assert not declared.supported
    assert declared.reason.endswith("transformers does, in its own mode")
