"""An encoder without offload, and with one kind offloaded to host memory or files."""

from __future__ import annotations

from typing import Literal

from conformance.scenarios.encoder_digits import LEARNS_IN, PLAIN, reading_digits
from conformance.scenarios.scenario import OFFLOADED, Scenario, Side, offloaded_bytes, share_of
from fixtures.recipe import Offload

HERE = "here"
AT_LEAST = {"activations": "at least 1", "parameters": "1", "optimizer": "1"}
"""Expected share of offloaded bytes: an activation saved by two operations may be offloaded twice."""


def _with_offload(
    name: str, to: Literal["host", "disk"], place: str, source: str, emulated: int = LEARNS_IN
) -> Scenario:
    published: dict[tuple[str, str], str] = {
        (kind, share_of(offloaded_bytes(kind), HERE)): AT_LEAST[kind] for kind in OFFLOADED
    }
    published |= {(kind, f"distance from {HERE}'s parameters"): "0" for kind in OFFLOADED}
    offloaded = (Side(kind, PLAIN.replace(offload=Offload((kind,), to)), equal=True) for kind in OFFLOADED)
    beside = f"all of it on the device, and activations, parameters or the optimizer's state in {place}"
    return reading_digits(name, beside, source, (Side(HERE, PLAIN), *offloaded), published, emulated)


CPU_OFFLOAD = _with_offload(
    "cpu-offload",
    "host",
    "the host's memory",
    "ZeRO-Offload (arXiv:2101.06840); PyTorch's save_on_cpu; JAX's host offloading",
)
DISK_OFFLOAD = _with_offload(
    "disk-offload",
    "disk",
    "files",
    "ZeRO-Infinity (arXiv:2104.07857); PyTorch's tutorial on hooks for saved tensors",
    emulated=6,
)
