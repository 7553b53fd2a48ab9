"""Canonical names for the state of a framework's run, for comparison with the oracle's."""

from __future__ import annotations

from collections.abc import Mapping

from fixtures.arrays import Array
from frameworks.contract import Conventions

Observation = dict[str, Array]

COMPARED = (
    *("result/", "parameter/", "master/", "buffer/", "scaler/", "accumulator/", "moment/", "steps/", "average/"),
    "window/",
)
REFERENCE_MOMENTS = {slot: slot for slot in ("momentum", "first_moment", "second_moment")}
STEPS = "steps"


def canonical(observation: Observation, moments: Mapping[str, str]) -> Observation:
    """An observation, with the optimizer's state as "moment/SLOT/PARAMETER", "steps/PARAMETER", "average/PARAMETER".

    Args:
        moments: the canonical slot by the framework's own; a slot that is not there is left out.
    """
    named: Observation = {}
    for name, value in observation.items():
        if not name.startswith("optimizer/"):
            named[name] = value
            continue
        slot, _, parameter = name.removeprefix("optimizer/").partition("/")
        if slot.startswith("steps."):
            named[f"steps/{slot.removeprefix('steps.')}"] = value
        elif slot == "average" and parameter:
            named[f"average/{parameter}"] = value
        elif not parameter and slot in ("steps", "schedule"):
            named[f"steps/{slot}"] = value
        elif parameter and (place := moments.get(slot)):
            named[f"steps/{parameter}" if place == STEPS else f"moment/{place}/{parameter}"] = value
    return {name: value for name, value in named.items() if name.startswith(COMPARED)}


def ends_by_itself(conventions: Conventions) -> bool:
    """Whether the framework ends a window itself with its last micro-batch, so that `apply` only reports."""
    return conventions.remainder != "flush"
