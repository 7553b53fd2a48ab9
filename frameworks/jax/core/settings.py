"""JAX on one device: modes, platforms, process-wide settings, trees of arrays, and the cache of compiled programs.

The cache is shared by all processes. JAX's key of a program is a hash of its operations, of the versions of JAX and
XLA, of the devices and of XLA's flags. The key contains neither the processor that XLA generated
code for nor the build of a version, so the folder's name contains both.
"""

import hashlib
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import flax
import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import GetAttrKey

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Ranks, Recipe, Sharding
from frameworks.base import BaseFramework, BaseRankGroup, processor, ranks_of
from frameworks.cache_folder import PROGRAMS, cache_folder, prune
from frameworks.contract import Attempt, Capability
from frameworks.ranks import RemoteRankGroup, WorkerGroup, worker_group_of

NO_PEAK = "memory_stats of a CPU device is None: JAX keeps none of its allocator"

wide_formats = jax.enable_x64 if hasattr(jax, "enable_x64") else import_module("jax.experimental").enable_x64
"""A scope that enables or disables 64-bit formats; experimental in older versions of JAX."""

Place: TypeAlias = jax.Device | NamedSharding
"""Placement of a run's arrays: a device, or a sharding over a mesh."""

Flat = dict[str, jax.Array]
"""A tree of variables with its paths joined by "/", as `flax.traverse_util` joins them."""

Tree = TypeVar("Tree")

REPLICA, SHARD = "replica", "shard"
"""Axes of the mesh: copies of the sharded arrays, and the parts of one copy."""

_SHARDED: dict[Sharding, frozenset[str]] = {
    "replicated": frozenset(),
    "optimizer": frozenset({"optimizer"}),
    "gradients": frozenset({"optimizer", "gradient"}),
    "full": frozenset({"optimizer", "gradient", "parameter"}),
}


def flat(tree: Mapping[str, Any]) -> Flat:
    """The leaves of a nested dictionary, by joined path."""
    return dict(flatten_dict(tree, sep="/"))


def nest_leaves(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The nested dictionary of leaves by joined path."""
    return dict(unflatten_dict(dict(leaves), sep="/"))


@dataclass(frozen=True)
class ShardingLayout:
    """A level of sharding on a mesh: rank r is the mesh's r-th device, row by row.

    An array without an evenly divisible axis is replicated: `NamedSharding` accepts no uneven division.
    """

    mesh: Mesh
    level: Sharding

    @property
    def whole(self) -> NamedSharding:
        """The sharding of an array with a copy on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def rows(self) -> NamedSharding:
        """The sharding of an array whose first axis is divided over all devices."""
        return NamedSharding(self.mesh, PartitionSpec((REPLICA, SHARD)))

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return int(self.mesh.devices.size)

    def divided_axis(self, shape: tuple[int, ...]) -> int | None:
        """The first axis that divides evenly over the ranks that share a copy, None if there is none."""
        return divided_axis(shape, self.mesh.shape[SHARD])

    def _sharding(self, kind: str, shape: tuple[int, ...]) -> NamedSharding:
        axis = self.divided_axis(shape) if kind in _SHARDED[self.level] else None
        return self.whole if axis is None else NamedSharding(self.mesh, PartitionSpec(*[None] * axis, SHARD))

    def state_shardings(self, state: Any) -> Any:
        """The shardings of a `TrainState`'s arrays."""
        return jax.tree_util.tree_map_with_path(lambda path, leaf: self._sharding(_kind(path), leaf.shape), state)

    # For use inside a compiled program.

    def state(self, state: Tree) -> Tree:
        """The parameters and the optimizer's state of a `TrainState` with their shardings."""
        result: Tree = jax.lax.with_sharding_constraint(state, self.state_shardings(state))
        return result

    def gradients(self, gradients: Flat) -> Flat:
        """Gradients with their shardings."""
        shardings = {path: self._sharding("gradient", value.shape) for path, value in gradients.items()}
        result: Flat = jax.lax.with_sharding_constraint(gradients, shardings)
        return result

    def replicate(self, tree: Tree) -> Tree:
        """A tree of arrays with a copy on every device."""
        result: Tree = jax.lax.with_sharding_constraint(tree, self.whole)
        return result

    # The state of a rank, outside of compiled programs.

    def of_rank(self, tree: Tree, rank: int) -> Tree:
        """A rank's tree in NumPy: arrays from its own device, completed from the devices that share its copy.

        Leaves that are not JAX arrays stay unchanged.
        """
        return jax.tree.map(lambda leaf: self._array_of_rank(leaf, rank) if isinstance(leaf, jax.Array) else leaf, tree)

    def _array_of_rank(self, value: jax.Array, rank: int) -> Array:
        parts = self.mesh.shape[SHARD]
        devices = list(self.mesh.devices.flat)
        shards = {shard.device: shard for shard in value.addressable_shards}
        copy = devices[rank - rank % parts : rank - rank % parts + parts]
        result = np.empty(value.shape, value.dtype)
        for device in [*copy, devices[rank]]:
            result[shards[device].index] = np.asarray(shards[device].data)
        return result

    def bytes_on(self, values: Iterable[jax.Array], rank: int) -> int:
        """Bytes of the parts of these arrays that are on a rank's device."""
        device = list(self.mesh.devices.flat)[rank]
        return sum(s.data.nbytes for value in values for s in value.addressable_shards if s.device == device)

    def stack(self, leaves: list[Array]) -> jax.Array:
        """The arrays of all ranks as one array (ranks, ...), with each rank's on its own device."""
        return jax.device_put(np.stack(leaves), self.rows)

    def assemble(self, leaves: list[Array], kind: str) -> jax.Array:
        """An array of this kind, assembled from a whole-sized array of each rank, of which it takes the rank's part.

        A part that several ranks hold comes from the first of them.
        """
        shape = leaves[0].shape
        sharding = self._sharding(kind, shape)
        indices = sharding.devices_indices_map(shape)
        whole = np.empty(shape, leaves[0].dtype)
        for rank, device in reversed(list(enumerate(self.mesh.devices.flat))):
            whole[indices[device]] = leaves[rank][indices[device]]
        return jax.device_put(whole, sharding)


def divided_axis(shape: tuple[int, ...], parts: int) -> int | None:
    """The first axis that divides into this many equal parts, None if there is none."""
    return next((axis for axis, size in enumerate(shape) if size and size % parts == 0), None)


def layout_of(ranks: Ranks) -> ShardingLayout:
    """The layout on the first `ranks.count` devices; those in a row of its mesh share one copy of sharded arrays.

    Raises:
        ValueError: there are fewer devices than ranks.
    """
    devices = jax.devices()[: ranks.count]
    grid = np.array(devices).reshape(ranks.count // ranks.shards, ranks.shards)
    return ShardingLayout(Mesh(grid, (REPLICA, SHARD)), ranks.level)


def arrays_of(state: Any, kind: str) -> list[jax.Array]:
    """The arrays of a kind, without counters: "optimizer", or "gradient", the accumulators of `optax.MultiSteps`."""
    leaves = jax.tree_util.tree_leaves_with_path(state.replace(average=None))
    return [leaf for path, leaf in leaves if _kind(path) == kind and leaf.ndim]


def _kind(path: tuple[Any, ...]) -> str:
    """The kind of a leaf of the state; an average of the weights is sharded like the optimizer's arrays."""
    names = [key.name for key in path if isinstance(key, GetAttrKey)]
    if "acc_grads" in names:
        return "gradient"
    return "parameter" if "params" in names[:1] else "optimizer"


def saved_bytes(losses: Callable[[Flat], Any], leaves: Flat, batch: Any) -> int:
    """Bytes of the distinct arrays in the pull-back of `losses` at `leaves`, without parameters and batch.

    The forward pass runs operation by operation, since a compiled one does not show its saved arrays. The pull-back of
    a matmul then has a copy of the weight. A compiled one has none, so the copy is not counted.
    """
    _, pull_back = jax.vjp(losses, leaves)
    excluded = {_address(array) for array in jax.tree.leaves((leaves, batch))}
    arrays = {_address(array): array for array in jax.tree.leaves(pull_back) if isinstance(array, jax.Array)}
    return sum(
        array.nbytes
        for key, array in arrays.items()
        if key not in excluded and not any(_is_copy(array, parameter) for parameter in leaves.values())
    )


def _is_copy(array: jax.Array, parameter: jax.Array) -> bool:
    alike = array.dtype == parameter.dtype and array.shape == parameter.shape
    return alike and np.array_equal(array, parameter)


def _address(array: jax.Array) -> int:
    return int(array.unsafe_buffer_pointer())


def peak_bytes(device: jax.Device) -> int | None:
    """The peak of a device's allocator in this process, in bytes; None on a CPU, which has no such count in JAX."""
    statistics = device.memory_stats()
    return None if statistics is None else int(statistics["peak_bytes_in_use"])


def has_peak() -> bool:
    """Whether the device in use reports a peak of allocated bytes."""
    (device,) = jax.numpy.ones(()).devices()
    return device.memory_stats() is not None


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
