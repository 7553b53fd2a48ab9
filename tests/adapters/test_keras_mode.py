"""Mode keras of the adapters jax and torch is refused, with what to do, where Keras cannot train on them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.suite_runs import ROOT, hang_limit

MISSING = """
import frameworks.jax
frameworks.jax.installed = lambda package: False
"""
ELSEWHERE = """
import sys
import types
import frameworks.jax
frameworks.jax.installed = lambda package: True
sys.modules["keras"] = types.SimpleNamespace(config=types.SimpleNamespace(backend=lambda: "tensorflow"))
"""
MADE = """
try:
    frameworks.jax.adapter("cpu", "keras")
except ValueError as error:
    print(error)
print(frameworks.jax.adapter("cpu").mode)
"""


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (MISSING, "needs Keras, which is not installed: pip install --no-deps keras h5py namex optree"),
        (ELSEWHERE, "needs Keras on JAX, and in this process it runs on tensorflow"),
    ],
    ids=["missing", "another-backend"],
)
def test_the_mode_is_refused_and_the_others_are_not(state: str, reason: str) -> None:
    pytest.importorskip("jax")
    done = subprocess.run(
        [sys.executable, "-c", state + MADE], cwd=ROOT, capture_output=True, text=True, timeout=hang_limit(), check=True
    )
    said, mode = done.stdout.splitlines()
    assert said.endswith(reason)
    assert mode == "jit"


ON_TORCH = """
import sys
import types
import frameworks.torch.libraries
frameworks.torch.libraries.version = lambda library: "3.15.1"
sys.modules["keras"] = types.SimpleNamespace(config=types.SimpleNamespace(backend=lambda: "tensorflow"))
try:
    frameworks.torch.adapter("cpu", "keras")
except ValueError as error:
    print(error)
print(frameworks.torch.adapter("cpu").mode)
"""


def test_another_backend_in_the_process_is_refused_on_torch() -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", ON_TORCH], cwd=ROOT, capture_output=True, text=True, timeout=hang_limit(), check=True
    )
    said, mode = done.stdout.splitlines()
    assert said == "mode 'keras' needs Keras on PyTorch, and in this process it runs on tensorflow"
    assert mode == "eager"
