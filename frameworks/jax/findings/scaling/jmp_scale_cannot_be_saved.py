"""A jmp.DynamicLossScale cannot be saved by Orbax: mapping anything but numbers over it raises."""

import sys
import tempfile

import jax.numpy as jnp
import jmp
import orbax.checkpoint as ocp

state = {"loss_scale": jmp.DynamicLossScale(jnp.float32(2.0**15))}
with tempfile.TemporaryDirectory() as folder:
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(f"{folder}/run", state)
            checkpointer.wait_until_finished()
            seen = f"a scale of {float(checkpointer.restore(f'{folder}/run', state)['loss_scale'].loss_scale)} restored"
    except (AttributeError, RuntimeError) as error:  # a RuntimeError of its threads may follow the AttributeError
        seen = f"{type(error).__name__}: {error}"

print("expected: a scale of 32768.0 restored")
print(f"seen: {seen}", flush=True)
sys.exit(seen != "a scale of 32768.0 restored")
