"""Orbax restores float32 weights into a float16 model, and the other way round, without a word."""

import sys
import tempfile

import jax.numpy as jnp
import orbax.checkpoint as ocp

seen = []
with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
    for name, saved, own in (("wide", jnp.float32, jnp.float16), ("low", jnp.float16, jnp.float32)):
        checkpointer.save(f"{folder}/{name}", {"kernel": jnp.full(2, 1.0 + 2.0**-20, saved)})
        checkpointer.wait_until_finished()
        try:
            kernel = checkpointer.restore(f"{folder}/{name}", {"kernel": jnp.zeros(2, own)})["kernel"]
            seen.append(f"{float(kernel[0])} in {kernel.dtype}")
        except ValueError as error:
            seen.append(f"a refusal: {error}")

print("expected: two refusals, for neither file has the receiver's format")
print(f"seen: {', '.join(seen)}")
sys.exit(not all(outcome.startswith("a refusal") for outcome in seen))
