"""JAX on one device: modes, platforms, process-wide settings, rank groups, and the cache of compiled programs.

The cache is shared by all processes. JAX's key of a program is a hash of its operations, of the versions of JAX and
XLA, of the devices and of XLA's flags. The key contains neither the processor that XLA generated
code for nor the build of a version, so the folder's name contains both.
"""

import hashlib
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import flax
import jax
import numpy as np

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.base import BaseFramework, BaseRankGroup, processor, ranks_of
from frameworks.cache_folder import PROGRAMS, cache_folder, prune
from frameworks.contract import Attempt, Capability
from frameworks.ranks import RemoteRankGroup, WorkerGroup, worker_group_of

JIT, NOJIT, SHARDED, OFFLOAD, KERAS = "jit", "nojit", "sharded", "offload", "keras"
PINNED_HOST = "pinned_host"
"""The memory kind of offloaded arrays."""
MODES = (JIT, NOJIT, SHARDED, OFFLOAD, KERAS)

_PLATFORMS = ("cpu", "tpu", "rocm", "cuda")
"""JAX's own platforms; its "gpu" is one of the last two."""

WHOLE = "highest"
"""JAX's name of full-precision float32 matmuls; on a GPU its default allows rounding."""
_MEMBERS = {SHARDED: "frameworks.jax.distributed:JaxWorker", KERAS: "frameworks.jax.keras.mesh:KerasWorker"}
"""Classes of the process of all ranks, by mode."""
REFUSED_RANKS: dict[Capability, str] = {
    Capability.RANKS_LOST: "the ranks are devices of one program in one process, which ends as a whole",
    Capability.RANKS_COLLECTIVES: "under jax.jit the compiler places the reductions and makes one of several, and a "
    "profile counts what it has made, not the gradients in it",
}
"""What no ranks on devices of one process support, with reasons."""

PACKAGES = ("flax", "optax", "jmp")
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_disable_jit",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_check_tracer_leaks",
)
_FOLLOWED = (
    "jax_allow_f16_reductions",
    "jax_compiler_enable_remat_pass",
    "jax_cpu_enable_async_dispatch",
    "jax_custom_vjp3",
    "jax_default_device",
    "jax_disable_most_optimizations",
    "jax_enable_custom_prng",
    "jax_enable_pgle",
    "jax_error_checking_behavior_divide",
    "jax_error_checking_behavior_nan",
    "jax_error_checking_behavior_oob",
    "jax_exec_time_optimization_effort",
    "jax_explicit_x64_dtypes",
    "jax_high_dynamic_range_gumbel",
    "jax_legacy_prng_key",
    "jax_memory_fitting_effort",
    "jax_memory_fitting_level",
    "jax_num_cpu_devices",
    "jax_optimization_level",
    "jax_random_seed_offset",
    "jax_remat3",
    "jax_scan3",
    "jax_softmax_custom_jvp",
    "jax_threefry_gpu_kernel_lowering",
    "jax_use_direct_linearize",
    "jax_use_magma",
    "jax_use_shardy_partitioner",
)
"""Other settings that programs and their rounding depend on; a version of JAX may lack some."""

_FLAX = ("flax_fix_rng_separator", "flax_preserve_adopted_names", "flax_return_frozendict")

_LARGEST = 2**30
"""Limit of the cache in bytes; above it, the least recently used programs are deleted until half of it is left."""
_CPUINFO = Path("/proc/cpuinfo")
_PROCESSOR_FIELDS = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")


class OnDevice(BaseFramework):
    """JAX on the CPU or an accelerator.

    Attributes:
        modes: all modes of the adapter.
        own_modes: modes of this class, the default one first.
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

    def on_device(self, attempt: Attempt) -> bool:
        """The result of an attempt on this device, compiled or not as in this mode."""
        with jax.default_device(self._place), jax.disable_jit(self.mode == NOJIT):
            return attempt()

    def devices(self) -> tuple[str, ...]:
        return tuple(platforms())

    def version(self) -> str:
        return f"{jax.__version__}+{'.'.join(f'{package}.{version(package)}' for package in PACKAGES)}"

    def environment(self) -> dict[str, str]:
        return read_environment(self._place)

    def measure_time(self, work: Callable[[], object]) -> int:
        """Nanoseconds on the host's clock: JAX has no events. `jax.block_until_ready` waits for the result of `work`.

        That is enough for a step: its outcome is ready only when its whole program has run.
        """
        return super().measure_time(lambda: jax.block_until_ready(work()))

    def global_state(self) -> dict[str, str]:
        return {name: repr(getattr(jax.config, name)) for name in _SETTINGS}

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        values: dict[str, bool | None] = {"True": True, "False": False, "None": None}
        for name, text in state.items():
            if repr(getattr(jax.config, name)) != text:
                jax.config.update(name, values.get(text, text.strip("'")))


def platforms() -> dict[str, str]:
    """JAX's names of the platforms that it finds, by the suite's names, which are in lower case."""
    result: dict[str, str] = {}
    for name in _PLATFORMS:
        with suppress(RuntimeError):  # there is no such platform here
            jax.devices(name)
            result[name] = name
    own = jax.default_backend()
    if own not in result and not (own == "gpu" and result.keys() & {"rocm", "cuda"}):
        result[own.lower()] = own
    return result


def rank_group(
    model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None, mode: str = SHARDED
) -> BaseRankGroup:
    """The ranks of a new run, each a device of XLA's on the CPU; the mode is that of their process.

    Raises:
        Unsupported: JAX's ranks do not support the recipe.
        ValueError: the recipe names no ranks.
    """
    devices = device_workers(ranks_of(recipe).count, mode)
    return RemoteRankGroup(devices, devices.make([(model, recipe, weights)]))


def device_workers(count: int, mode: str = SHARDED) -> WorkerGroup:
    """The process of a mode's ranks, each a device of XLA's on the CPU."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}".strip()
    return worker_group_of(_MEMBERS[mode], count, "cpu", mode, {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}, 1)


def is_installed(package: str) -> bool:
    """Returns whether an optional package is installed."""
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def read_environment(device: jax.Device) -> dict[str, str]:
    """Device model, versions, XLA's flags and switches that results may depend on."""
    result: dict[str, object] = {
        "device": processor() if device.platform == "cpu" else device.device_kind,
        "platform": device.client.platform_version,
        "xla-flags": os.environ.get("XLA_FLAGS", ""),
        "jaxlib": version("jaxlib"),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    result |= {name: version(name) for name in (*PACKAGES, "orbax-checkpoint", *filter(is_installed, ("qwix",)))}
    settings = jax.config.values
    chosen = {name: settings[name] for name in _FOLLOWED if name in settings}
    chosen |= {name: getattr(jax.config, name) for name in _SETTINGS}
    result |= {
        name.removeprefix("jax_").replace("_", "-"): getattr(value, "name", value) for name, value in chosen.items()
    }
    result |= {name.replace("_", "-"): getattr(flax.config, name) for name in _FLAX if hasattr(flax.config, name)}
    return {name: " ".join(str(value).split()) for name, value in result.items()}


def store_programs(device: jax.Device) -> None:
    """Makes JAX store and look up compiled programs in a folder of the cache for this processor.

    A folder in JAX's own settings has precedence. If the cache folder cannot be written, nothing is stored.
    """
    _count_uses()
    if device.platform != "cpu" or jax.config.jax_compilation_cache_dir is not None:
        return
    root = cache_folder() / "jax"
    try:
        folder = root / f"{code_generator_key()}-{build(libraries(), root / 'builds')}"
        folder.mkdir(parents=True, exist_ok=True)
        prune(root, _LARGEST)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def code_generator_key(listing: Path = _CPUINFO) -> str:
    """A name for the features of this processor that XLA's code generator can use."""
    lines = listing.read_text("utf-8", errors="replace").splitlines() if listing.is_file() else []
    features = {line for line in lines if line.partition(":")[0].strip() in _PROCESSOR_FIELDS}
    description = "\n".join([platform.machine(), platform.processor(), *sorted(features)])
    return hashlib.sha256(description.encode()).hexdigest()[:16]


def libraries() -> list[Path]:
    """The shared objects of jaxlib, including the compiler."""
    package = find_spec("jaxlib")
    folders = [] if package is None else package.submodule_search_locations or []
    paths = [path for folder in folders for path in Path(folder).rglob("*")]
    return sorted(path for path in paths if path.suffix in (".so", ".dylib", ".pyd"))


def build(paths: Sequence[Path], digests: Path) -> str:
    """A digest of the content of these files.

    Args:
        digests: folder of the files' digests, by path, size and time of change, since the compiler has 350 MB.

    Raises:
        OSError: a file cannot be read, or the folder cannot be written.
    """
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        version_of_file = f"{path} {status.st_size} {status.st_mtime_ns} {status.st_ino}"
        entry = digests / hashlib.sha256(version_of_file.encode()).hexdigest()[:32]
        with suppress(OSError):  # the digest is not stored yet
            content = entry.read_text("ascii")
            if len(content) == hashlib.sha256().digest_size * 2:
                digest.update(content.encode())
                continue
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digests.mkdir(parents=True, exist_ok=True)
        entry.write_text(content, "ascii")
        digest.update(content.encode())
    return digest.hexdigest()[:16]


@cache
def _count_uses() -> None:
    """Begins to count the lookups and the hits of JAX's cache of programs."""

    def count(event: str, **_: object) -> None:
        PROGRAMS.asked += event == "/jax/compilation_cache/compile_requests_use_cache"
        PROGRAMS.hits += event == "/jax/compilation_cache/cache_hits"

    jax.monitoring.register_event_listener(count)
