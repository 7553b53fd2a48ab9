"""Base of JAX's framework classes: modes, device, environment, times and settings."""

from collections.abc import Callable, Mapping

import jax

from frameworks.base import BaseFramework
from frameworks.jax.core.compilation_cache import store_programs
from frameworks.jax.core.settings import full_version, read_environment, read_settings, write_settings

JIT, NOJIT, SHARDED, OFFLOAD, KERAS = "jit", "nojit", "sharded", "offload", "keras"
PINNED_HOST = "pinned_host"
"""The memory kind of offloaded arrays."""
MODES = (JIT, NOJIT, SHARDED, OFFLOAD, KERAS)

_PLATFORMS = ("cpu", "tpu", "rocm", "cuda")
"""JAX's own platforms; its "gpu" is one of the last two."""

WHOLE = "highest"
"""What JAX calls products of float32 matrices that keep every bit; on a GPU it lets them round by default."""


def platforms() -> dict[str, str]:
    """JAX's names of the platforms that it finds, by the suite's names, which are in lower case."""
    result = {name: name for name in _PLATFORMS if _is_available(name)}
    own = jax.default_backend()
    if own not in result and not (own == "gpu" and result.keys() & {"rocm", "cuda"}):
        result[own.lower()] = own
    return result


def _is_available(platform: str) -> bool:
    try:
        return bool(jax.devices(platform))
    except RuntimeError:
        return False


class OnDevice(BaseFramework):
    """JAX on the CPU or an accelerator.

    Attributes:
        modes: those of the adapter, whoever trains in them.
        own_modes: those of this class, the default one first.
    """

    name: str = "jax"
    modes: tuple[str, ...] = MODES
    own_modes: tuple[str, ...]

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        super().__init__(device, mode or self.own_modes[0])
        if self.mode not in self.own_modes:
            raise ValueError(f"{type(self).__name__} has no mode {self.mode!r}: one of {', '.join(self.own_modes)}")
        self._place = jax.devices(platforms()[self.device])[0]
        if self.device != "cpu":
            jax.config.update("jax_default_matmul_precision", WHOLE)
        store_programs(self._place)

    def devices(self) -> tuple[str, ...]:
        return tuple(platforms())

    def version(self) -> str:
        return full_version()

    def environment(self) -> dict[str, str]:
        return read_environment(self._place)

    def timed(self, work: Callable[[], object]) -> int:
        """By a clock of the host's: JAX has no events, and `jax.block_until_ready` waits for what `work` returns.

        A step needs no more: the outcome that it reads is ready when all of its program is.
        """
        return super().timed(lambda: jax.block_until_ready(work()))

    def global_state(self) -> dict[str, str]:
        return read_settings()

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        write_settings(state)
