"""The dynamic loss scale of JMP's own example, made in half precision, raises as soon as it is adjusted."""

import sys

import jax.numpy as jnp
import jmp

loss_scale = jmp.DynamicLossScale(jmp.half_dtype()(2**15))
try:
    loss_scale = loss_scale.adjust(jnp.array(False))
    seen = f"a scale of {float(loss_scale.loss_scale)}"
except TypeError as error:
    seen = f"TypeError: {str(error).splitlines()[0]}"

print("expected: a scale of 16384.0, half of 2^15 after an overflow")
print(f"seen: {seen}")
sys.exit(seen != "a scale of 16384.0")
