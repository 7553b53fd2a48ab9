"""What the adapter of JAX sets in the environment before JAX reads it."""

from __future__ import annotations

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
    place = tmp_path / "version"
    place.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15\n")
    return place


def test_without_a_gpu_no_flags_are_set(tmp_path: Path) -> None:
    assert variables({"XLA_FLAGS": "--a"}, tmp_path / "none") == {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def test_kernels_are_not_chosen_by_their_times(driver: Path) -> None:
    assert variables({}, driver)["XLA_FLAGS"] == KERNELS


def test_given_flags_win_for_the_last_one_counts(driver: Path) -> None:
    given = "--xla_gpu_autotune_level=4"
    assert variables({"XLA_FLAGS": given}, driver)["XLA_FLAGS"] == f"{KERNELS} {given}"


def test_a_process_of_such_a_process_sets_nothing_twice(driver: Path) -> None:
    once = variables({}, driver)
    assert variables(once, driver) == {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def test_memory_is_taken_as_it_is_needed_unless_told(driver: Path) -> None:
    assert variables({"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, driver)["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"
