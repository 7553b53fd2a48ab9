"""Float8 training with Keras: scales and amax histories are variables that their gradients overwrite."""

from __future__ import annotations

from collections.abc import Mapping

import keras

from fixtures.arrays import Array
from frameworks.contract import AmaxHistory, DelayedRule, Float8Rule, Operand
from frameworks.tf.core.arrays import as_array

RULE = Float8Rule(DelayedRule("float8_e4m3fn", "float8_e5m2", lag=2), skipped="stays", mean="micro-batch")
"""A pass casts by the scale that is stored before it, and each micro-batch's loss is its own mean."""
_OPERANDS: dict[Operand, str] = {"input": "inputs", "kernel": "kernel", "gradient": "outputs_grad"}


def amax_histories(memory: Mapping[str, keras.Variable]) -> dict[str, dict[Operand, AmaxHistory]]:
    """The delayed-scaling state, by the names of weights."""
    paths = dict.fromkeys(name.rpartition(".")[0] for name in memory)
    return {
        f"{path}.weight": {
            operand: AmaxHistory(
                float(as_array(memory[f"{path}.{name}_scale"])), as_array(memory[f"{path}.{name}_amax_history"])
            )
            for operand, name in _OPERANDS.items()
        }
        for path in paths
    }


def delayed_scaling_state(
    memory: Mapping[str, keras.Variable], accumulators: Mapping[str, keras.Variable]
) -> dict[str, Array]:
    """The delayed-scaling state, and the gathered values of an open window."""
    state = {name: as_array(variable) for name, variable in memory.items()}
    return state | {f"gathered/{name}": as_array(variable) for name, variable in accumulators.items()}
