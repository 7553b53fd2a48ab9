"""JAX's casts to 8-bit formats, and its integer matmul."""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fixtures.arrays import Array
from frameworks.base import BaseFormats
from frameworks.contract import CastRule
from frameworks.jax.core.arrays import wide_formats

_INFINITE = CastRule("inf", "inf")
_NAN = CastRule("nan", "nan")
_DOCUMENTED = {
    "float8_e4m3fn": _NAN,
    "float8_e5m2": _INFINITE,
    "float8_e4m3fnuz": _NAN,
    "float8_e5m2fnuz": _NAN,
    "float8_e4m3": _INFINITE,
    "float8_e3m4": _INFINITE,
    "float8_e8m0fnu": _NAN,
}


class JaxFormats(BaseFormats):
    """Casts by `astype`; codes by `jax.lax.bitcast_convert_type`. Compiled, unless `jit` is False."""

    def __init__(self, place: jax.Device, *, jit: bool) -> None:
        self._place = place
        self._jit = jit

    def casts(self) -> Mapping[str, CastRule]:
        return {name: rule for name, rule in _DOCUMENTED.items() if hasattr(jnp, name)}

    def encode(self, values: Array, format_name: str) -> Array:
        with wide_formats(values.dtype == np.float64), jax.default_device(self._place), jax.disable_jit(not self._jit):
            return np.asarray(_codes(jax.device_put(values, self._place), getattr(jnp, format_name)))

    def decode(self, codes: Array, format_name: str) -> Array:
        with jax.default_device(self._place), jax.disable_jit(not self._jit):
            return np.asarray(_values(jax.device_put(codes, self._place), getattr(jnp, format_name)))

    def integer_product(self, a: Array, b: Array) -> Array:
        with jax.default_device(self._place), jax.disable_jit(not self._jit):
            return np.asarray(_product(*(jax.device_put(each, self._place) for each in (a, b))))

    def float8_product(self, a: Array, b: Array, formats: tuple[str, str]) -> Array:
        with jax.default_device(self._place), jax.disable_jit(not self._jit):
            left, right = (
                jax.lax.bitcast_convert_type(jax.device_put(codes, self._place), getattr(jnp, name))
                for codes, name in zip((a, b), formats, strict=True)
            )
            return np.asarray(_narrow_product(left, right))


@jax.jit
def _narrow_product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.lax.dot(a, b, preferred_element_type=jnp.float32)


@jax.jit
def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.lax.dot(a, b, preferred_element_type=jnp.int32)


@partial(jax.jit, static_argnums=1)
def _codes(values: jax.Array, dtype: type) -> jax.Array:
    return jax.lax.bitcast_convert_type(values.astype(dtype), jnp.uint8)


@partial(jax.jit, static_argnums=1)
def _values(codes: jax.Array, dtype: type) -> jax.Array:
    return jax.lax.bitcast_convert_type(codes, dtype).astype(jnp.float32)
