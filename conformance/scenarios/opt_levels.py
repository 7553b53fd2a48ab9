"""apex's levels O0 to O3 on one model."""

from __future__ import annotations

from conformance.scenarios.digits_accumulation import digits_setting
from conformance.scenarios.scenario import Scenario, Side, accuracy
from fixtures.recipe import SGD, DynamicScaling, Precision, Recipe

_O0 = Recipe(SGD(0.05, momentum=0.9))

OPT_LEVELS = Scenario(
    name="opt-levels",
    title="784-512-256-128-10 with momentum at apex's levels, float16; the scale is dynamic at O1 and O2",
    source="apex: amp.initialize(opt_level=...) and scale_loss",
    setting=digits_setting,
    sides=(
        Side("O0", _O0),
        Side("O1", _O0.replace(precision=Precision("O1", "float16"), scaling=DynamicScaling())),
        Side("O2", _O0.replace(precision=Precision("O2", "float16"), scaling=DynamicScaling())),
        Side("O3", _O0.replace(precision=Precision("O3", "float16"))),
    ),
    batch=64,
    epochs=3,
    shorter={"emulated": 23},
    learns_in=23,
    quality=accuracy(),
)
