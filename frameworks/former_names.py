"""Names of versions 1 and 2 of the contract, for adapters outside of this repository, until the next version."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = {
    "by_hand": "native_loop",
    "base.company": "base.rank_group",
    "base.company_trainer": "base.rank_group_trainer",
    "base.observing": "base.introspection",
    "contract.aware": "contract.qat",
    "contract.company": "contract.rank_group",
    "contract.quantizing": "contract.quantization",
    "ranks.company": "ranks.remote_group",
    "ranks.crew": "ranks.worker_group",
    "ranks.living": "ranks.pool",
    "ranks.member": "ranks.worker_main",
    "ranks.membership": "ranks.protocol",
    "reference.arithmetic": "reference.core.arithmetic",
    "reference.aware": "reference.quantization.qat",
    "reference.checkpoint": "reference.core.checkpoint",
    "reference.decisions": "reference.training.decisions",
    "reference.delayed_scaling": "reference.quantization.delayed_scaling",
    "reference.eight_bit_state": "reference.quantization.eight_bit_state",
    "reference.float8_training": "reference.quantization.float8_training",
    "reference.formats": "reference.quantization.formats",
    "reference.forward": "reference.training.forward",
    "reference.functions": "reference.core.functions",
    "reference.loop": "reference.training.loop",
    "reference.lost_ranks": "reference.distributed.lost_ranks",
    "reference.matrix_optimizers": "reference.training.matrix_optimizers",
    "reference.network": "reference.core.network",
    "reference.offload": "reference.training.offload",
    "reference.operations": "reference.core.operations",
    "reference.optimizers": "reference.training.optimizers",
    "reference.post_training": "reference.quantization.post_training",
    "reference.products": "reference.core.products",
    "reference.quantized_training": "reference.training.quantized_training",
    "reference.quantizers": "reference.quantization.quantizers",
    "reference.rank_trainer": "reference.distributed.rank_trainer",
    "reference.ranks": "reference.distributed.ranks",
    "reference.recompute": "reference.core.recompute",
    "reference.rounding": "reference.core.rounding",
    "reference.saved_bytes": "reference.core.saved_bytes",
    "reference.saved_run": "reference.training.saved_run",
    "reference.scaler": "reference.training.scaler",
    "reference.scope": "reference.core.scope",
    "reference.shipped": "reference.shipped.operations_and_layers",
    "reference.shipped_optimizers": "reference.shipped.optimizers",
    "reference.special": "reference.core.special_functions",
    "reference.tape": "reference.core.tape",
    "reference.tensor": "reference.core.tensor",
    "reference.trace": "reference.core.trace",
    "reference.trainer": "reference.training.trainer",
    "reference.update_rules": "reference.training.update_rules",
    "reference.whole_state": "reference.training.state_dict",
}
"""Present names of modules by their former ones, within `frameworks`."""

METHODS = {
    "bytes_held": "resident_bytes",
    "clipped_by_hand": "clip_in_manual_step",
    "company": "rank_group",
    "feed": "apply_gradients",
    "shown_to_hook": "gradient_in_hook",
}
"""Present names of methods by their former ones."""

MEMBERS = {
    "fixtures.recipe": {"Aware": "Qat"},
    "frameworks.contract": {"Passed": "PassResult", "Remembered": "AmaxHistory"},
}
"""Present names of classes and functions by their former ones."""

RULES = {
    "NumberFormats": "formats",
    "Quantizers": "quantizers",
    "PostTraining": "post_training",
    "QatRule": "aware_rule",
    "Float8Rule": "float8_rule",
    "EightBitRule": "eight_bit_rule",
    "DelayedProducts": "delayed_product",
}
"""The former method of a framework that gave a rule, by the rule's class."""

_KEYWORDS = {"poison": "inject", "abandon": "discard"}


class _Moved(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        return ModuleSpec(fullname, self) if package == "frameworks" and name in MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = f"frameworks.{MODULES[spec.name.partition('.')[2]]}"
        _warn(spec.name, new)
        return import_module(new)

    def exec_module(self, module: ModuleType) -> None:
        """The module has been executed under its present name."""


def install() -> None:
    """Makes modules importable by their former names."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())


def alias() -> None:
    """Gives classes and functions, and fields of `Capability` and `Recipe`, their former names too."""
    for module, names in MEMBERS.items():
        for old, new in names.items():
            setattr(import_module(module), old, getattr(import_module(module), new))
    recipe, capability = import_module("fixtures.recipe").Recipe, import_module("frameworks.contract").Capability
    recipe.but, capability.AWARE = recipe.replace, capability.QAT


def rename(owner: type) -> None:
    """Gives a class, for each method that it defines by one name, the same by the other name."""
    for old, new in METHODS.items():
        if new in vars(owner):
            setattr(owner, old, _called(vars(owner)[new], _KEYWORDS))
        elif old in vars(owner):
            _warn(f"{owner.__name__}.{old}", new)
            setattr(owner, new, _called(vars(owner)[old], {now: then for then, now in _KEYWORDS.items()}))


def former_rule(framework: object, kind: str) -> Callable[[], Any] | None:
    """What makes a rule by its former method; None if the framework has none."""
    method = getattr(framework, RULES.get(kind, ""), None)
    return partial(partial, method) if kind == "DelayedProducts" and method is not None else method


def _called(method: Callable[..., Any], keywords: Mapping[str, str]) -> Callable[..., Any]:
    def called(self: object, *arguments: Any, **named: Any) -> Any:
        return method(self, *arguments, **{keywords.get(name, name): value for name, value in named.items()})

    return called


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)
