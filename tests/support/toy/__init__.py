"""A framework of many small releases: the reference, whose version is that of an installed package of one module.

From version 4 to version 5 its scaler applies what an overflow should have skipped.
"""

import conformance_toy
from packaging.version import Version

from frameworks.broken import AppliesOverflow
from frameworks.reference import ReferenceFramework

FAULTY = Version("4") <= Version(conformance_toy.VERSION) < Version("5")


class ToyFramework(ReferenceFramework):
    """The reference by another name."""

    name = "toy"
    trainer_class = AppliesOverflow.trainer_class if FAULTY else ReferenceFramework.trainer_class

    def version(self) -> str:
        """The version of the package."""
        return str(conformance_toy.VERSION)
