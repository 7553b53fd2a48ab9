"""Process-wide settings of PyTorch that results depend on or that may leak, the compiler, devices and arrays."""

import os
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import ml_dtypes
import numpy as np
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils._pytree import tree_flatten

from fixtures.arrays import Array
from fixtures.recipe import Offload
from frameworks.base import processor
from frameworks.base.recompute import OffloadedActivations, SavedActivations, TensorFiles
from frameworks.cache_folder import cache_folder

P = ParamSpec("P")
R = TypeVar("R")

COMPILE, DYNAMIC = "compile", "compile-dynamic"
MODES = (COMPILE, DYNAMIC)
"""Compiled modes: PyTorch's default, which specializes on sizes until they change, and programs for all sizes."""
_ISOLATION = "isolate_recompiles"
_SPECIALIZATIONS: WeakKeyDictionary[Callable[..., Any], set[Hashable]] = WeakKeyDictionary()
"""By function of all sizes, the `_specialization` of each program that it has; a reset of the compiler removes them."""

_LIBRARIES = ("accelerate", "bitsandbytes", "deepspeed", "torchao", "transformers")
"""Optional libraries of modes and recipes."""

_SWITCHES = (
    "backends.fp32_precision",
    "backends.mkldnn.enabled",
    "backends.mkldnn.deterministic",
    "backends.mkldnn.allow_tf32",
    "backends.mkldnn.fp32_precision",
    "backends.mkldnn.matmul.fp32_precision",
    "backends.mkldnn.conv.fp32_precision",
    "backends.mkldnn.rnn.fp32_precision",
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
    "backends.cudnn.fp32_precision",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
    "backends.cuda.matmul.fp32_precision",
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.cuda.flash_sdp_enabled",
    "backends.cuda.mem_efficient_sdp_enabled",
    "backends.cuda.math_sdp_enabled",
    "backends.cuda.cudnn_sdp_enabled",
    "backends.cuda.fp16_bf16_reduction_math_sdp_allowed",
    "backends.cuda.preferred_linalg_library",
    "backends.cuda.preferred_blas_library",
    "backends.mha.get_fastpath_enabled",
    "backends.opt_einsum.enabled",
    "backends.quantized.engine",
    "utils.deterministic.fill_uninitialized_memory",
    "version.git_version",
)
"""Attributes and functions of `torch`; each version has some of them."""

_LIBRARY = re.compile(
    r"^\s*- (?:Intel\(R\) )?(oneAPI Math Kernel Library|MKL-DNN|GCC) (?:Version )?(\S+)", re.MULTILINE
)
"""The compiler and the libraries of kernels that torch was built with, and their versions."""

os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))  # default: a temporary folder


def _is_true(text: str) -> bool:
    return text == "True"


def _scopes() -> tuple[str, ...]:
    """Devices that have a precision scope of their own; "cuda" has one without a GPU."""
    return tuple(dict.fromkeys(("cpu", "cuda", *available())))


def read_settings() -> dict[str, str]:
    """Every setting that `write_settings` can restore, by name."""
    result: dict[str, object] = {
        "default-dtype": dtype_name(torch.get_default_dtype()),
        "grad-mode": torch.is_grad_enabled(),
        "autocast.cache": torch.is_autocast_cache_enabled(),
        "threads": torch.get_num_threads(),
        "matmul-precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic.warn-only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "anomaly-mode": torch.is_anomaly_enabled(),
        "anomaly-mode.check-nan": torch.is_anomaly_check_nan_enabled(),
        "cudnn.enabled": torch.backends.cudnn.enabled,
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "quantized.engine": torch.backends.quantized.engine,
    }
    for scope in _scopes():
        result[f"autocast.{scope}"] = torch.is_autocast_enabled(scope)
        result[f"autocast.{scope}.dtype"] = dtype_name(torch.get_autocast_dtype(scope))
    return {name: str(value) for name, value in result.items()}


def write_settings(state: Mapping[str, str]) -> None:
    """Restores what `read_settings` returned."""
    torch.set_default_dtype(getattr(torch, state["default-dtype"]))
    torch.set_grad_enabled(_is_true(state["grad-mode"]))
    torch.set_autocast_cache_enabled(_is_true(state["autocast.cache"]))
    torch.set_num_threads(int(state["threads"]))
    if torch.get_float32_matmul_precision() != state["matmul-precision"]:
        torch.set_float32_matmul_precision(state["matmul-precision"])
    torch.use_deterministic_algorithms(
        _is_true(state["deterministic"]), warn_only=_is_true(state["deterministic.warn-only"])
    )
    torch.autograd.set_detect_anomaly(_is_true(state["anomaly-mode"]), _is_true(state["anomaly-mode.check-nan"]))
    torch.backends.cudnn.enabled = _is_true(state["cudnn.enabled"])
    torch.backends.cudnn.benchmark = _is_true(state["cudnn.benchmark"])
    torch.backends.cudnn.deterministic = _is_true(state["cudnn.deterministic"])
    if torch.backends.quantized.engine != state["quantized.engine"]:
        torch.backends.quantized.engine = state["quantized.engine"]
    for scope in _scopes():
        torch.set_autocast_enabled(scope, _is_true(state[f"autocast.{scope}"]))
        torch.set_autocast_dtype(scope, getattr(torch, state[f"autocast.{scope}.dtype"]))


def pin_kernels() -> None:
    """Pins convolutions on a GPU: float32, not TensorFloat-32 as by default, and one order of addition."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True


@contextmanager
def tf32_products(allowed: bool | None) -> Iterator[None]:
    """Allows or forbids TensorFloat-32 in products of float32 matrices; None: PyTorch's default."""
    former = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(former)


def multiplies_in_tf32(device: str) -> bool:
    """Returns whether a float32 matmul drops a bit that TensorFloat-32 lacks, where TensorFloat-32 is allowed."""
    factor = torch.full((64, 64), 1.0 + 2.0**-12, device=device)
    with tf32_products(True):
        return bool((factor @ torch.eye(64, device=device) == 1.0).all())


def _switches() -> dict[str, object]:
    """Precision and determinism switches that this version has, by name; a mix of old and new ones cannot be read."""
    values: dict[str, object] = {}
    for name in _SWITCHES:
        try:
            value = attrgetter(name)(torch)
            values[name.removeprefix("backends.")] = value() if callable(value) else value
        except (AttributeError, RuntimeError):
            continue
    return values


def read_environment(device: str) -> dict[str, str]:
    """Device model, versions, precision switches and thread counts that results may depend on."""
    result: dict[str, object] = {
        "device": model_name(device),
        "cpu-capability": torch.backends.cpu.get_cpu_capability(),
        "onednn": torch.backends.mkldnn.is_available(),
        "mkl": torch.backends.mkl.is_available(),
        "threads": torch.get_num_threads(),
        "interop-threads": torch.get_num_interop_threads(),
        "matmul-precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic.warn-only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "default-dtype": dtype_name(torch.get_default_dtype()),
        "numpy": np.__version__,
        **_switches(),
        **{f"built-with.{name}": number for name, number in _LIBRARY.findall(torch.__config__.show())},
    }
    result |= {library: version(library) for library in _LIBRARIES if find_spec(library) is not None}
    if device == "cuda":
        result |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "capability": ".".join(str(part) for part in torch.cuda.get_device_capability()),
            "tf32.matmul": torch.backends.cuda.matmul.allow_tf32,
            "tf32.cudnn": torch.backends.cudnn.allow_tf32,
            "reduced-precision.float16": torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
            "reduced-precision.bfloat16": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        }
    return {name: str(value) for name, value in result.items()}


def begin_anew() -> None:
    """Resets the compiler, as in a new process.

    PyTorch counts variants and records shapes for each code object, which all runs of a process share.
    """
    torch.compiler.reset()
    for programs in _SPECIALIZATIONS.values():
        programs.clear()


def compile_function(function: Callable[P, R], mode: str) -> Callable[P, R]:
    """The function as one compiled graph, or an error: a graph break or too many variants never run eagerly.

    Variants are counted for each call of `torch.compile` where PyTorch can count them so. In mode "compile-dynamic" an
    error is also a second program for arguments that differ from earlier ones in their sizes alone.
    """
    options: dict[str, Any] = {"dynamic": True} if mode == DYNAMIC else {}
    if _ISOLATION in signature(torch.compile).parameters:
        options[_ISOLATION] = True
    call = torch.compile(function, fullgraph=True, **options)
    return _once_for_all_sizes(call) if mode == DYNAMIC and hasattr(torch.compiler, "set_stance") else call


def _once_for_all_sizes(call: Callable[P, R]) -> Callable[P, R]:
    """The compiled function, which may not compile again for arguments that only have other sizes."""
    programs: set[Hashable] = set()

    def call_without_recompiling(*args: P.args, **kwargs: P.kwargs) -> R:
        key = _specialization(args, kwargs)
        if key not in programs:
            programs.add(key)
            return call(*args, **kwargs)
        with torch.compiler.set_stance("fail_on_recompile"):
            return call(*args, **kwargs)

    _SPECIALIZATIONS[call_without_recompiling] = programs
    return call_without_recompiling


def _specialization(*arguments: object) -> Hashable:
    """The arguments without their sizes; PyTorch specializes programs on sizes of 0 and 1, and on equal sizes."""
    leaves, structure = tree_flatten(arguments)
    sizes = [size for leaf in leaves if isinstance(leaf, torch.Tensor) for size in leaf.shape]
    tensors = [
        (leaf.dtype, leaf.dim(), leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
    ]
    equal = [size if size < 2 else -1 - sizes.index(size) for size in sizes]
    return torch.is_grad_enabled(), str(structure), tuple(tensors), tuple(equal)


def without_buffer_donation() -> AbstractContextManager[None]:
    """A scope in which compiled backward passes keep their buffers, so that a graph can run backward twice."""
    return torch._functorch.config.patch(donated_buffer=False)


CPU = "cpu"
_BACKENDS = ("mtia", "hpu", "npu", "mps", "xpu", "cuda")
"""Types of accelerators that have had a module `torch.TYPE` in PyTorch or one of its extensions."""
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def to_tensor(array: Array, device: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A new tensor on `device`, rounded to `dtype` if one is given."""
    copy = np.array(array, order="C")
    if copy.dtype == BFLOAT16:
        tensor = torch.from_numpy(copy.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(copy)
    return tensor.to(device=device, dtype=dtype or tensor.dtype)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, gathered if ranks hold shards of it; then every rank must call this."""
    gathered = getattr(tensor, "full_tensor", None)
    return tensor if gathered is None else gathered()


def to_array(tensor: torch.Tensor) -> Array:
    """A copy of the tensor's values in its own format, gathered if ranks hold shards of it."""
    copy = whole(tensor.detach()).cpu().clone(memory_format=torch.contiguous_format)  # FSDP1 resizes what NumPy fixes
    if copy.dtype == torch.bfloat16:
        return copy.view(torch.int16).numpy().view(BFLOAT16)
    return copy.numpy()


def dtype_name(dtype: torch.dtype) -> str:
    """The format's name without the framework's prefix."""
    return str(dtype).removeprefix("torch.")


class SavedBytes:
    """Counts each storage that autograd saves once, except the storages of `excluded` at that time.

    It keeps the storages alive while it counts, so that no other tensor gets the same address.
    """

    def __init__(self, excluded: Callable[[], Iterable[torch.Tensor]]) -> None:
        self._excluded = excluded
        self._storages: dict[int, torch.UntypedStorage] = {}

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts saved tensors within the context."""
        with saved_tensors_hooks(self._pack, lambda saved: saved):
            yield

    def bytes(self) -> int:
        """Sum of the counted storages."""
        return sum(storage.nbytes() for storage in self._storages.values())

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in {other.untyped_storage().data_ptr() for other in self._excluded()}:
            self._storages[storage.data_ptr()] = storage
        return tensor


@contextmanager
def put_back(tensors: Sequence[torch.Tensor], counts: list[int]) -> Iterator[None]:
    """Restores previous values of tensors and counts."""
    values, former = [tensor.clone() for tensor in tensors], list(counts)
    yield
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
    counts[:] = former


def available() -> tuple[str, ...]:
    """The CPU and the types of the available accelerators; that of `torch.accelerator` is the last."""
    preferred = _accelerator()
    others = (name for name in _BACKENDS if name not in preferred and _is_available(name))
    return (CPU, *others, *preferred)


def _accelerator() -> tuple[str, ...]:
    """The type that `torch.accelerator` names; versions before 2.6 have no such module."""
    if not hasattr(torch, "accelerator") or not torch.accelerator.is_available():
        return ()
    current = torch.accelerator.current_accelerator()
    return () if current is None else (current.type,)


def _is_available(name: str) -> bool:
    check = getattr(getattr(torch, name, None), "is_available", None)
    return check is not None and bool(check())


def module(device: str) -> Any:
    """PyTorch's module of an accelerator, such as `torch.cuda` or `torch.xpu`."""
    return torch.get_device_module(device)


def index(device: str) -> int:
    """Index of the accelerator in use; 0 where there can only be one, as with MPS."""
    current = getattr(module(device), "current_device", None)
    return 0 if current is None else int(current())


def model_name(device: str) -> str:
    """Model name of the processor or accelerator; the type if the accelerator's module has no name."""
    if device == CPU:
        return processor()
    describe = getattr(module(device), "get_device_name", None)
    return device if describe is None else str(describe())


def has_peak(device: str) -> bool:
    """Returns whether the device's allocator keeps a peak that can be reset."""
    return device != CPU and all(
        hasattr(module(device), name) for name in ("max_memory_allocated", "reset_peak_memory_stats")
    )


def random_apart(device: str) -> AbstractContextManager[None]:
    """A scope that restores the states of the generators of the CPU and the device at its end."""
    return torch.random.fork_rng([] if device == CPU else [index(device)], device_type=device)


class Stream:
    """The default generators' states of one run, installed only while the run draws.

    Attributes:
        states: generator state by device type, in PyTorch's format.
    """

    def __init__(self, device: str, seed: int) -> None:
        self._device = device
        self._index = None if device == CPU else index(device)
        self.states: dict[str, torch.Tensor] = {}
        with random_apart(device):
            torch.manual_seed(seed)
            self._keep()

    @contextmanager
    def open(self, *, keep: bool = True) -> Iterator[None]:
        """Within the context, the default generators are this run's; with `keep` the stream advances."""
        with random_apart(self._device):
            torch.set_rng_state(self.states[CPU])
            if self._index is not None:
                module(self._device).set_rng_state(self.states[self._device], self._index)
            try:
                yield
            finally:
                if keep:
                    self._keep()

    def replace(self, states: Mapping[str, torch.Tensor]) -> None:
        """Replaces the states; PyTorch refuses invalid ones."""
        self.states = {name: state.clone() for name, state in states.items()}
        with self.open():
            pass

    def _keep(self) -> None:
        self.states = {CPU: torch.get_rng_state()}
        if self._index is not None:
            self.states[self._device] = module(self._device).get_rng_state(self._index)


def activations_of(offload: Offload | None) -> SavedActivations:
    """The activation offload of a run.

    Raises:
        OSError: the run's folder cannot be made.
    """
    if offload is None:
        return SavedActivations()
    size = attrgetter("nbytes")
    if offload.to == "disk":
        files = TensorFiles(offload.folder, _save, _load, ".pt")
        return OffloadedActivations(saved_tensors_hooks, files.pack, files.unpack, size)
    hooks: Any = save_on_cpu()
    return OffloadedActivations(saved_tensors_hooks, hooks.pack_hook, hooks.unpack_hook, size)


def _save(tensor: torch.Tensor, path: Path) -> None:
    torch.save(tensor.detach(), path)


def _load(path: Path) -> torch.Tensor:
    return torch.load(path, weights_only=True)


def parameters_leave() -> bool:
    """Returns whether `fully_shard`, the only API that offloads parameters, works without ranks."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard  # slow to import, rarely needed

    linear = torch.nn.Linear(2, 2, device=available()[-1])
    before = linear.weight.device
    fully_shard(linear, offload_policy=CPUOffloadPolicy(pin_memory=False))
    return linear.weight.device != before
