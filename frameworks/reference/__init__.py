"""The reference framework in NumPy: the oracle, and the subject of mutants."""

from frameworks.reference.framework import ReferenceFramework

__all__ = ["ReferenceFramework"]
