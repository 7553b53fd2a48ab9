"""Products with delayed scaling as one technique."""

from __future__ import annotations

from conformance.search.property import Property
from conformance.techniques.delayed_scaling.step_strategies import delayed
from conformance.techniques.technique import Technique
from frameworks.contract import Capability
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.delayed_scaling import ReferenceDelayedProduct

DELAYED_SCALING = Technique(
    rows={"delayed-scaling": "`float8` matmul with delayed scaling"},
    clauses={"formats.delayed-scaling": "delayed-scaling"},
    properties={"laws.delayed-scales": Property(12, delayed, 1, 1 / 8, (Capability.DELAYED_SCALING,))},
    breaks=("formats.delayed-scaling",),
    features=("delayed=window", "delayed=infinite"),
    places={ReferenceDelayedProduct: ("delayed_class", ReferenceFramework)},
)
