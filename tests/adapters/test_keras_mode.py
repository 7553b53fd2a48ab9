"""Mode keras of the adapters jax and torch is refused, with what to do, where Keras cannot train on them."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

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
        monkeypatch.setattr(module, "is_installed", lambda _: installed)
    else:
        libraries: Any = pytest.importorskip("frameworks.torch.libraries")
        monkeypatch.setattr(libraries, "version", lambda _: "3.15.1")
    if installed:
        monkeypatch.setitem(sys.modules, "keras", ELSEWHERE)
    with pytest.raises(ValueError, match=f"{reason}$"):
        module.adapter("cpu", "keras")
    assert module.adapter("cpu").mode == default
