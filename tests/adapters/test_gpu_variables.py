"""What the adapter of JAX sets in the environment before JAX reads it."""

from pathlib import Path
from runpy import run_path

from tests.support.suite_runs import ROOT

# By its path: its package imports JAX, which the suite's own tests do without.
_MODULE = run_path(str(ROOT / "frameworks" / "jax" / "core" / "gpu_variables.py"))
KERNELS, variables = _MODULE["KERNELS"], _MODULE["variables"]


def test_variables_on_a_gpu_add_to_those_of_the_user_and_without_one_are_no_flags(tmp_path: Path) -> None:
    none, driver = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, tmp_path / "version"
    assert variables({"XLA_FLAGS": "--a"}, driver) == none
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15\n")
    first = variables({}, driver)
    assert first["XLA_FLAGS"] == KERNELS
    user = "--xla_gpu_autotune_level=4"
    assert variables({"XLA_FLAGS": user}, driver)["XLA_FLAGS"] == f"{KERNELS} {user}", "the last one counts"
    assert variables(first, driver) == none, "a process of such a process"
    assert variables({"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, driver)["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"
