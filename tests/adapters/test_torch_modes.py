"""Modes of PyTorch that need more than PyTorch: compiled programs, the build of DeepSpeed, and models in 8 bits."""

import importlib.util
import pickle
import shutil
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from conformance.checks.checkpoints import SavedRun, find_difference, is_clear, saved_runs
from fixtures.data import vector_batch
from fixtures.model import Head, Heads, LayerNorm, Model, Residual, SelfAttention
from fixtures.recipe import Recipe
from frameworks.contract import Capability, PostTraining
from frameworks.registry import load
from frameworks.torch.core.settings import DYNAMIC, compile_function
from frameworks.torch.distributed import deepspeed_start
from frameworks.torch.quantization import transformers_models

ATTENTION = Model(
    "attention",
    (Residual((LayerNorm(), SelfAttention(2))), Heads((Head("output", 4),))),
    (5, 8),
    (("output", "cross_entropy"),),
    token_level=True,
)
SIZES = ((3, 5), (4, 7), (6, 9), (2, 5))
"""Batch sizes, and lengths of the sequences."""
FOLDER = "deepspeed_shm_comm"


def count_programs() -> int:
    """The number of graphs that this process has compiled."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def train_on_every_size(mode: str) -> list[float]:
    run = load("torch", "cpu", mode).trainer(ATTENTION, Recipe())
    return [run.update((vector_batch(size, length, 8),)).loss for size, length in SIZES]


def test_update_in_dynamic_mode_compiles_one_program_for_every_size() -> None:
    before = count_programs()
    result = train_on_every_size(DYNAMIC)
    assert count_programs() - before == 1
    np.testing.assert_allclose(result, train_on_every_size("eager"), rtol=1e-5)


def test_compile_function_that_depends_on_the_size_raises() -> None:
    call = compile_function(lambda x: x.exp() if x.shape[0] > 4 else x.neg(), DYNAMIC)
    assert call(torch.ones(3, 2)).equal(-torch.ones(3, 2))
    with pytest.raises(RuntimeError, match="recompile"):
        call(torch.ones(7, 2))


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Replaces the compiler by one that writes the files of a build."""

    def write_build(*_: Any, **__: Any) -> None:
        (tmp_path / FOLDER).mkdir(exist_ok=True)
        (tmp_path / FOLDER / f"{FOLDER}.so").touch()

    compiler = Mock(side_effect=write_build)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(deepspeed_start, "version", {"deepspeed": "1.0", "torch": "1.0"}.get)
    monkeypatch.setattr(subprocess, "run", compiler)
    return compiler


@pytest.mark.parametrize(
    "failure",
    [
        subprocess.TimeoutExpired("build", deepspeed_start.BUILD_S),
        subprocess.CalledProcessError(1, "build", stderr="no compiler"),
    ],
    ids=["too-long", "fails"],
)
def test_prepare_after_a_failed_build_builds_again(build: Mock, failure: Exception) -> None:
    write_build, build.side_effect = build.side_effect, failure
    with pytest.raises(RuntimeError, match="could not be compiled"):
        deepspeed_start._prepare()
    build.side_effect = write_build
    deepspeed_start._prepare()
    assert build.call_count == 2


def test_require_without_deepspeed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed_start, "is_installed", lambda: False)
    deepspeed_start.problem.cache_clear()
    try:
        with pytest.raises(RuntimeError, match=r"pip install --no-build-isolation deepspeed"):
            deepspeed_start.require()
    finally:
        deepspeed_start.problem.cache_clear()


def uninstall(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Makes exactly these libraries look missing."""
    make_spec = importlib.util.spec_from_loader
    monkeypatch.setattr(transformers_models, "find_spec", lambda name: None if name in names else make_spec(name, None))


@pytest.mark.parametrize("missing", [("bitsandbytes",), ("transformers", "accelerate", "bitsandbytes")], ids=len)
def test_declares_without_libraries_names_them(missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    uninstall(monkeypatch, *missing)
    framework = load("torch", "cpu", transformers_models.MODE)
    declared = framework.declares(Capability.LOAD_INT8)
    assert not declared.supported
    assert declared.reason == f"{', '.join(missing)}: not installed: pip install {' '.join(missing)}"
    assert not framework.rule(PostTraining).rules()


def test_load_int8_outside_its_mode_or_a_cpu_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    uninstall(monkeypatch)
    assert transformers_models.TransformersPostTraining("cpu").rules()
    assert not transformers_models.TransformersPostTraining("cuda").rules()
    assert not transformers_models.find_refusals()
    declared = load("torch", "cpu", "eager").declares(Capability.LOAD_INT8)
    assert not declared.supported
    assert declared.reason.endswith("transformers does, in its own mode")


def test_distributed_checkpoint_without_a_later_option_is_no_clear_refusal(tmp_path: Path) -> None:
    """As PyTorch 2.6 wrote it, before AdamW had the option of Adam (pytorch#146157)."""
    (program,) = {saved.program for saved in saved_runs("torch", "eager", "eager")}
    shutil.unpack_archive(sorted(program.parent.glob("torch-*.zip"))[0], tmp_path / "old")
    path = tmp_path / "old" / "distributed" / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    options = [name for name in metadata.state_dict_metadata if name.endswith(".decoupled_weight_decay")]
    for name in options:
        for table in (metadata.state_dict_metadata, metadata.planner_data):
            del table[name]
    path.write_bytes(pickle.dumps(metadata))
    archive = Path(shutil.make_archive(str(tmp_path / "torch-2.6.0"), "zip", tmp_path / "old"))
    wanted, resumed = SavedRun(program, archive).resume(tmp_path)
    assert len(options) > 1
    assert find_difference(resumed["save"], wanted["save"]) == ""
    assert "Missing key in checkpoint state_dict" in resumed["distributed"]
    assert not is_clear(resumed["distributed"])
