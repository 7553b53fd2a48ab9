"""8-bit Adam as one technique."""

from __future__ import annotations

from conformance.techniques.technique import Technique
from fixtures.recipe import Adam, Recipe
from frameworks.reference.quantization.eight_bit_state import EightBitState
from frameworks.reference.training.trainer import ReferenceTrainer

EIGHT_BIT_STATE = Technique(
    recipes=(Recipe(Adam(state_bits=8)),),
    rows={"adam-8bit": "8-bit Adam"},
    clauses={"quantization.adam8-[!m]*": "adam-8bit"},
    places={EightBitState: ("eight_bit_class", ReferenceTrainer)},
)
