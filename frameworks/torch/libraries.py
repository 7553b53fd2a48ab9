"""Libraries on top of PyTorch: modes that train by the library's own loop, as its documentation says.

This module imports none of them. A mode's class is imported when a run asks for the mode.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version


@dataclass(frozen=True)
class Stack:
    """A library whose training loop a mode drives.

    Attributes:
        library: name of its distribution, as pip writes it.
        oldest: the oldest version that the mode can drive.
        path: the mode's framework class, "package.module:Class".
    """

    library: str
    oldest: str
    path: str

    def problem(self, mode: str) -> str:
        """The reason why the mode cannot run here, and what to do; "" if it can run."""
        remedy = f"run `conformance run --mode {mode} torch`, which installs it"
        try:
            here = version(self.library)
        except PackageNotFoundError:
            return f"torch's mode {mode!r} needs {self.library}, which is not installed: {remedy}"
        if Version(here) < Version(self.oldest):
            return f"torch's mode {mode!r}: got {self.library} {here}, want {self.oldest} or newer: {remedy}"
        return ""


STACKS: Mapping[str, Stack] = {
    "keras": Stack("keras", "3.10", "frameworks.torch.keras.framework:KerasOnTorch"),
    "fabric": Stack("lightning", "2.5", "frameworks.torch.stacks.fabric:FabricFramework"),
    "lightning": Stack("lightning", "2.5", "frameworks.torch.stacks.lightning:LightningFramework"),
    "accelerate": Stack("accelerate", "1.10", "frameworks.torch.stacks.accelerate:AccelerateFramework"),
    "trainer": Stack("transformers", "5.3", "frameworks.torch.stacks.trainer:TransformersFramework"),
    "trainer-plain": Stack("transformers", "5.3", "frameworks.torch.stacks.trainer:TransformersFramework"),
}
"""The libraries by mode."""
