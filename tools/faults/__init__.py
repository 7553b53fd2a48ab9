"""Faults: frameworks with one fault each, small overrides that bring a real bug back.

    @fault("https://…", "scaling.stays-finite")
    class ScaleGrowsToInfinity(ReferenceTrainer):
        \"\"\"The scale has no largest value.\"\"\"

        def next_scale(self, scaler, finite): ...

The decorator makes a framework of it, so that `--framework=tools.faults.reference.scaling:ScaleGrowsToInfinity`
runs it. The decorator's arguments are literals: `tools.faults.catalogue` reads them without importing a framework.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from conformance.techniques import load_techniques
from fixtures.recipe import Offload
from fixtures.schedules import PlateauRule
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.calls import ReferenceFunction
from frameworks.reference.distributed import ReferenceRankGroup
from frameworks.reference.quantization.float8 import DelayedScaling, Float8Layers
from frameworks.reference.shipped import ReferenceFunctions, ReferenceOptimizers, ReferenceShipped
from frameworks.reference.training.offload import ArrayStore, DiskStore, HostStore
from frameworks.reference.training.optimizers import RULES
from frameworks.reference.training.trainer import ReferenceLoop, ReferenceTrainer


class InStore(ReferenceTrainer):
    """A run whose stores of offloaded arrays are of these types."""

    host: type[HostStore] = HostStore
    disk: type[DiskStore] = DiskStore

    def make_store(self, offload: Offload) -> ArrayStore:
        return self.host() if offload.to == "host" else self.disk(offload.folder)


PLACES: Mapping[type, tuple[str, type]] = {
    **{base: attribute for technique in load_techniques() for base, attribute in technique.places.items()},
    HostStore: ("host", InStore),
    DiskStore: ("disk", InStore),
    DelayedScaling: ("scaling_class", Float8Layers),
    ReferenceTrainer: ("trainer_class", ReferenceFramework),
    ReferenceRankGroup: ("rank_group_class", ReferenceFramework),
    Operations: ("operations_class", ReferenceFramework),
    ReferenceFunction: ("function_class", ReferenceFramework),
    ReferenceLoop: ("loop_class", ReferenceFramework),
    PlateauRule: ("plateau_class", ReferenceFramework),
    ReferenceFunctions: ("functions_class", ReferenceFramework),
    ReferenceShipped: ("shipped_class", ReferenceFramework),
    ReferenceOptimizers: ("shipped_optimizers_class", ReferenceFramework),
}
"""The attribute that names each replaceable class of the reference, and the class that has it."""


def fault(link: str, *clauses: str, raises: bool = False, mode: str = "", names: str = "") -> Callable[[type], type]:
    """Makes a framework of a class that overrides part of one.

    A subclass of one of `PLACES`, or of an optimizer's update rule, replaces that class in the reference; a framework
    stays as it is.

    Args:
        link: the real bug that the fault brings back, "" for an invented one.
        clauses: the clauses that are about it. Each of them must fail.
        raises: the framework raises, so the outcomes "error", "timeout" and "crash" count too.
        mode: the adapter's mode in which it is run, the first one by default.
        names: text that the message of every failing verdict of `clauses` must contain, none by default: the layer that
            the message of a parity failure names, such as "(SelfAttention), output".
    """
    del link, clauses, raises, mode, names
    return _framework


class _Replacement(NamedTuple):
    owner: Any
    name: str
    function: Callable[..., Any]


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], Any]:
    """Marks a function of a fault that replaces an attribute of a library once the framework is made.

    Its first argument is the original attribute, and a method's `self` follows:

        @replaces(torch.optim.Adam, "step")
        def step_twice(step, self, *args): ...
    """
    return lambda function: _Replacement(owner, name, function)


def _replace(replacement: _Replacement) -> None:
    owner, name, function = replacement
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **named: function(original, *args, **named))


def _framework(broken: Any) -> type:
    attributes = {"__doc__": broken.__doc__, "__module__": broken.__module__}
    if replacements := [value for value in vars(broken).values() if isinstance(value, _Replacement)]:
        make = broken.__init__

        def make_and_replace(self: Any, *args: Any) -> None:
            make(self, *args)
            for replacement in replacements:
                _replace(replacement)

        broken = type(broken.__name__, (broken,), {**attributes, "__init__": make_and_replace})
    if rules := {optimizer: broken for optimizer, rule in RULES.items() if issubclass(broken, rule)}:
        broken = type(broken.__name__, (ReferenceTrainer,), {**attributes, "rules": {**RULES, **rules}})
    while base := next((base for base in PLACES if issubclass(broken, base)), None):
        attribute, owner = PLACES[base]
        broken = type(broken.__name__, (owner,), {**attributes, attribute: broken})
    return broken
