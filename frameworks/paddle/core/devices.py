"""Devices, random streams, bytes saved by autograd, and conversion between tensors and NumPy arrays in true formats."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import paddle
from paddle.amp.auto_cast import amp_global_state
from paddle.autograd import saved_tensors_hooks
from paddle.base import core
from paddle.distributed.fleet.utils import recompute
from paddle.distributed.sharding import group_sharded_parallel
from paddle.utils import unique_name

from fixtures.arrays import Array
from fixtures.recipe import Offload
from frameworks.base import GPU, gpu_name
from frameworks.base.recompute import OffloadedActivations, SavedActivations, TensorFiles


def format_name(dtype: Any) -> str:
    """Name of a Paddle format, such as "float32"."""
    return str(dtype).rsplit(".", 1)[-1].rsplit("DataType.", 1)[-1].lower()


def to_numpy(tensor: Any) -> Array:
    """A copy of a tensor or array; bfloat16, which Paddle returns as bits in uint16, becomes ml_dtypes' bfloat16."""
    value = np.array(tensor if isinstance(tensor, np.ndarray) else tensor.numpy())
    return value.view(ml_dtypes.bfloat16) if format_name(tensor.dtype) in ("bfloat16", "uint16") else value


def to_tensor(value: Array, like: Any = None) -> Any:
    """`value` as a tensor on the current device, in the format of the tensor `like` or else in its own."""
    array = np.ascontiguousarray(value)
    wanted = str(array.dtype) if like is None else format_name(like.dtype)
    if wanted == "bfloat16":
        return paddle.to_tensor(array.astype(np.float32)).astype("bfloat16")
    return paddle.to_tensor(array.astype(wanted))


def copy_of_gradient(parameter: Any) -> Any:
    """A copy of the parameter's gradient. A shared tensor would lose its memory in `clear_grad`."""
    return None if parameter.grad is None else parameter.grad.detach().clone()


def put_gradient(parameter: Any, value: Any) -> None:
    """Makes `value` the gradient of `parameter`; None removes it. Paddle 2 refuses the assignment of None."""
    if value is None:
        parameter.clear_gradient(False)
    else:
        parameter.grad = value


def canonical(value: Array) -> Array:
    """A stored parameter in canonical layout: Paddle keeps convolution kernels as (out, in, height, width)."""
    return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value


def to_paddle_layout(value: Array) -> Array:
    """A canonical parameter in Paddle's layout."""
    return value.transpose(3, 2, 0, 1) if value.ndim == 4 else value


def allocated_bytes(forward: Callable[[], Any]) -> int:
    """The growth of the allocated bytes across `forward`, while the result of `forward` is alive."""
    gc.collect()
    before = _count_allocated_bytes()
    result = forward()
    gc.collect()
    growth = _count_allocated_bytes() - before
    del result
    return growth


def _count_allocated_bytes() -> int:
    device_type, number = in_use()
    if device_type == "cpu":
        return int(core.host_memory_stat_current_value("Allocated", 0))
    if device_type == GPU:
        return int(paddle.device.cuda.memory_allocated())
    return int(core.device_memory_stat_current_value("Allocated", number))


def peak_bytes() -> int:
    """The peak of an accelerator's allocator in this process, in bytes; a CPU's keeps none."""
    device_type, number = in_use()
    if device_type == GPU:
        return int(paddle.device.cuda.max_memory_allocated())
    return int(core.device_memory_stat_peak_value("Allocated", number))


def available() -> tuple[str, ...]:
    """ "cpu" and the types of the other devices that are there, a GPU last."""
    return ("cpu", *map(_suite_name, _device_types()))


def own_name(device: str) -> str:
    """Paddle's name of the device."""
    return next((own for own in _device_types() if _suite_name(own) == device), "cpu")


def current() -> str:
    """The suite's name of the device in use."""
    return _suite_name(in_use()[0])


def place() -> Any:
    """Paddle's `Place` of the device in use."""
    device_type, number = in_use()
    match device_type:
        case "cpu":
            return paddle.CPUPlace()
        case "gpu":
            return paddle.CUDAPlace(number)
        case "xpu":
            return paddle.XPUPlace(number)
        case _:
            return paddle.CustomPlace(device_type, number)


def model_name(device: str) -> str:
    """Model of an accelerator; its type where Paddle does not say."""
    if own_name(device) == GPU:
        return str(paddle.device.cuda.get_device_name())
    describe = getattr(paddle.device, "get_device_name", None)
    return device if describe is None else str(describe())


def in_use() -> tuple[str, int]:
    """Paddle's type of the device in use, and its number."""
    device_type, _, number = paddle.device.get_device().partition(":")
    return device_type, int(number or 0)


def _device_types() -> tuple[str, ...]:
    """Paddle's types of the accelerators that are there, a GPU last."""
    listed = (*paddle.device.get_available_device(), *(paddle.device.get_available_custom_device() or ()))
    types = dict.fromkeys(device.partition(":")[0] for device in listed)
    others = tuple(own for own in types if own not in ("cpu", GPU))
    has_gpu = paddle.device.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
    return (*others, GPU) if has_gpu else others


def _suite_name(device_type: str) -> str:
    return gpu_name(cuda=not paddle.device.is_compiled_with_rocm(), rocm=True) if device_type == GPU else device_type


class Stream:
    """A random stream of its own over Paddle's one generator for each device.

    Inside `with_fresh_names()` generated names start again (so that parameters and optimizer slots have the same names
    in every run and process), and the leaking `amp_dtype` is restored at its end; inside `open()` the generator has
    this stream's state, too.
    """

    def __init__(self, seed: int) -> None:
        before = paddle.get_rng_state()
        paddle.seed(seed)
        self.state = paddle.get_rng_state()
        paddle.set_rng_state(before)

    @contextmanager
    def with_fresh_names(self) -> Iterator[None]:
        """A context that draws no random numbers."""
        dtype = amp_global_state().amp_dtype
        try:
            with unique_name.guard():
                yield
        finally:
            amp_global_state().amp_dtype = dtype

    @contextmanager
    def open(self) -> Iterator[None]:
        """A context that draws random numbers from this stream."""
        outer = paddle.get_rng_state()
        paddle.set_rng_state(self.state)
        try:
            with self.with_fresh_names():
                yield
        finally:
            self.state = paddle.get_rng_state()
            paddle.set_rng_state(outer)

    def words(self) -> Array:
        """The generator's state as integers; the printed form also holds an address, which is left out."""
        numbers = [int(word) % 2**64 for word in str(self.state[0]).split() if not word.startswith("0x")]
        return np.array(numbers, np.uint64)


ONE_PAIR = "saved_tensors_hooks takes one pair at a time, and recompute(use_reentrant=False) opens its own"
"""Reason: activations that hooks recompute cannot be offloaded by hooks."""


def activations_of(offload: Offload | None) -> SavedActivations:
    """The offload of a run.

    Raises:
        OSError: the run's folder cannot be made.
    """
    if offload is None:
        return SavedActivations()
    files = TensorFiles(offload.folder, _save, _load, ".pdtensor")
    return OffloadedActivations(saved_tensors_hooks, files.pack, files.unpack, _size)


def _save(tensor: Any, path: Path) -> None:
    paddle.save({"value": tensor.detach(), "stop_gradient": tensor.stop_gradient}, str(path))


def _load(path: Path) -> Any:
    """The tensor, with a gradient if it had one: reentrant recomputation asks its saved inputs."""
    saved = paddle.load(str(path))
    saved["value"].stop_gradient = saved["stop_gradient"]
    return saved["value"]


def _size(tensor: Any) -> int:
    return int(tensor.size) * int(tensor.element_size())


def hooks_nest() -> bool:
    """Returns whether hooks may be opened inside others, as recomputation by hooks would."""
    with saved_tensors_hooks(lambda value: value, lambda value: value):
        layer = paddle.nn.Linear(2, 2)
        recompute(layer, paddle.ones([1, 2]), use_reentrant=False).sum().backward()
    return layer.weight.grad is not None


def offloads_shards() -> bool:
    """Returns whether `group_sharded_parallel`, which alone offloads parameters and moments, takes this device."""
    layer = paddle.nn.Linear(2, 2)
    optimizer = paddle.optimizer.AdamW(parameters=layer.parameters())
    group_sharded_parallel(layer, optimizer, "p_g_os", offload=True)
    return True
