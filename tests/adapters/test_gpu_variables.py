"""What the adapter of JAX sets in the environment before JAX reads it."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from tests.support.suite_runs import ROOT

_SPEC = spec_from_file_location("gpu_variables", ROOT / "frameworks" / "jax" / "core" / "gpu_variables.py")
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = module_from_spec(_SPEC)  # by its place: its package imports JAX, which the suite's own tests do without
_SPEC.loader.exec_module(_MODULE)
KERNELS, variables = _MODULE.KERNELS, _MODULE.variables


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    path = tmp_path / "version"
    path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15\n")
    return path


def test_variables_without_a_gpu_are_no_flags(tmp_path: Path) -> None:
    assert variables({"XLA_FLAGS": "--a"}, tmp_path / "none") == {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def test_variables_on_a_gpu_add_to_those_of_the_user(driver: Path) -> None:
    first = variables({}, driver)
    assert first["XLA_FLAGS"] == KERNELS
    user = "--xla_gpu_autotune_level=4"
    assert variables({"XLA_FLAGS": user}, driver)["XLA_FLAGS"] == f"{KERNELS} {user}", "the last one counts"
    assert variables(first, driver) == {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, "a process of such a process"
    assert variables({"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, driver)["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"
