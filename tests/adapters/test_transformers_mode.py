"""Models that are loaded in eight bits, where the libraries for it are not installed, or one of them."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

pytest.importorskip("torch")

from frameworks.contract import Capability, PostTraining
from frameworks.registry import load
from frameworks.torch.quantization import transformers_models


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
def test_a_gpu_is_offered_nothing() -> None:
    assert transformers_models.TransformersPostTraining("cpu").rules()
    assert not transformers_models.TransformersPostTraining("cuda").rules()
    assert not transformers_models.refused()


def test_other_modes_do_not_offer_it() -> None:
    declared = load("torch", "cpu", "eager").declares(Capability.LOAD_INT8)
    assert not declared.supported
    assert declared.reason.endswith("transformers does, in its own mode")
