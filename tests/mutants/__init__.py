"""Mutants: frameworks with one fault each, small overrides that bring a real bug back.

    @fault("https://…", component="scaler", clauses=("scaling.stays-finite",))
    class ScaleGrowsToInfinity(ReferenceTrainer):
        \"\"\"The scale has no largest value.\"\"\"

        def next_scale(self, scaler, finite): ...

The decorator makes a framework of it, so that `pytest --framework=tests.mutants.scaling:ScaleGrowsToInfinity` runs it.
What the decorator is given are literals: `tests.mutants.catalogue` reads them without importing a framework.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from frameworks.reference import ReferenceFramework
from frameworks.reference.arithmetic import Operations
from frameworks.reference.aware import AwareLayers
from frameworks.reference.delayed_scaling import ReferenceDelayedProduct
from frameworks.reference.eight_bit_state import EightBitState
from frameworks.reference.float8_training import Float8Layers
from frameworks.reference.formats import ReferenceFormats
from frameworks.reference.post_training import ReferenceQuantizedModel
from frameworks.reference.quantizers import ReferenceQuantizers
from frameworks.reference.ranks import ReferenceCompany
from frameworks.reference.trainer import ReferenceTrainer


def fault(
    link: str,
    *,
    component: str,
    clauses: tuple[str, ...],
    raises: bool = False,
    mode: str = "",
    names: str = "",
) -> Callable[[type], type]:
    """Makes a framework of a class that overrides part of one.

    A subclass of the reference's trainer, company, operations, formats, quantizers, delayed product, quantized model,
    eight-bit state, aware layers or layers of delayed scaling takes the place of that in the reference; a framework
    stays as it is.

    Args:
        link: the real bug that the mutant brings back.
        component: where it lives, such as "scaler".
        clauses: the clauses that are about it. Each of them must fail.
        raises: the fault is an exception of the framework's own, so an outcome `error` is what must be seen.
        mode: the adapter's mode in which it is run, the first one by default.
        names: text that the message of every failing verdict of `clauses` must contain, none by default: the layer that
            a parity failure blames, as its message puts it, such as "(SelfAttention), output".
    """
    del link, component, clauses, raises, mode, names

    def decorate(broken: type) -> type:
        overrides: dict[str, Any] = {"__doc__": broken.__doc__, "__module__": broken.__module__}
        if issubclass(broken, ReferenceTrainer):
            overrides["trainer_class"] = broken
        elif issubclass(broken, AwareLayers):
            overrides["trainer_class"] = type(broken.__name__, (ReferenceTrainer,), {"aware_class": broken})
        elif issubclass(broken, Float8Layers):
            overrides["trainer_class"] = type(broken.__name__, (ReferenceTrainer,), {"float8_class": broken})
        elif issubclass(broken, Operations):
            overrides["operations_class"] = broken
        elif issubclass(broken, ReferenceCompany):
            overrides["company_class"] = broken
        elif issubclass(broken, ReferenceQuantizedModel):
            overrides["quantized_model_class"] = broken
        elif issubclass(broken, ReferenceDelayedProduct):
            overrides["delayed_class"] = broken
        elif issubclass(broken, ReferenceFormats):
            overrides["formats_class"] = broken
        elif issubclass(broken, ReferenceQuantizers):
            overrides["quantizers_class"] = broken
        elif issubclass(broken, EightBitState):
            overrides["trainer_class"] = type(broken.__name__, (ReferenceTrainer,), {"eight_bit_class": broken})
        else:
            return broken
        return type(broken.__name__, (ReferenceFramework,), overrides)

    return decorate
