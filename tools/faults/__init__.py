"""Faults: frameworks with one fault each, small overrides that bring a real bug back.

    @fault("https://…", "scaling.stays-finite")
    class ScaleGrowsToInfinity(ReferenceTrainer):
        \"\"\"The scale has no largest value.\"\"\"

        def next_scale(self, scaler, finite): ...

The decorator makes a framework of it, so that `--framework=tools.faults.reference.scaling:ScaleGrowsToInfinity`
runs it. The decorator's arguments are literals: `tools.faults.catalogue` reads them without importing a framework.
"""

from collections.abc import Callable, Mapping

from conformance.techniques.technique import load_techniques
from fixtures.schedules import PlateauRule
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.network import ReferenceFunction
from frameworks.reference.distributed import ReferenceRankGroup
from frameworks.reference.shipped import ReferenceFunctions, ReferenceOptimizers, ReferenceShipped
from frameworks.reference.training.trainer import ReferenceLoop, ReferenceTrainer

PLACES: Mapping[type, tuple[str, type]] = {
    **{base: attribute for technique in load_techniques() for base, attribute in technique.places.items()},
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

    A subclass of one of `PLACES` replaces that class in the reference; a framework stays as it is.

    Args:
        link: the real bug that the fault brings back, "" for an invented one.
        clauses: the clauses that are about it. Each of them must fail.
        raises: the fault is an exception of the framework's own, so an outcome `error` is what must be seen.
        mode: the adapter's mode in which it is run, the first one by default.
        names: text that the message of every failing verdict of `clauses` must contain, none by default: the layer that
            a parity failure blames, as its message puts it, such as "(SelfAttention), output".
    """
    del link, clauses, raises, mode, names
    return _framework


def _framework(broken: type) -> type:
    while base := next((base for base in PLACES if issubclass(broken, base)), None):
        attribute, owner = PLACES[base]
        own = {"__doc__": broken.__doc__, "__module__": broken.__module__}
        broken = type(broken.__name__, (owner,), {**own, attribute: broken})
    return broken
