"""The reference framework in NumPy: the oracle, and the subject of faults."""

from frameworks.reference.framework import ReferenceFramework

__all__ = ["ReferenceFramework"]
