"""Devices of Paddle: the CPU, GPUs, XPUs, and those that plug-ins add."""

from typing import Any

import paddle

from frameworks.base import GPU, gpu_name


def available() -> tuple[str, ...]:
    """ "cpu" and the types of the other devices that are there, a GPU last."""
    return ("cpu", *(_name(kind) for kind in _kinds()))


def own_name(device: str) -> str:
    """Paddle's name of the device."""
    return next((kind for kind in _kinds() if _name(kind) == device), "cpu")


def current() -> str:
    """The suite's name of the device in use."""
    return _name(in_use()[0])


def place() -> Any:
    """The device in use as a place."""
    kind, number = in_use()
    match kind:
        case "cpu":
            return paddle.CPUPlace()
        case "gpu":
            return paddle.CUDAPlace(number)
        case "xpu":
            return paddle.XPUPlace(number)
        case _:
            return paddle.CustomPlace(kind, number)


def model_name(device: str) -> str:
    """Model of an accelerator; its type where Paddle does not say."""
    if own_name(device) == GPU:
        return str(paddle.device.cuda.get_device_name())
    describe = getattr(paddle.device, "get_device_name", None)
    return device if describe is None else str(describe())


def in_use() -> tuple[str, int]:
    """Paddle's type of the device in use, and its number."""
    kind, _, number = paddle.device.get_device().partition(":")
    return kind, int(number or 0)


def _kinds() -> tuple[str, ...]:
    listed = (*paddle.device.get_available_device(), *(paddle.device.get_available_custom_device() or ()))
    others = dict.fromkeys(kind for kind in (each.partition(":")[0] for each in listed) if kind not in ("cpu", GPU))
    has_gpu = paddle.device.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
    return (*others, GPU) if has_gpu else tuple(others)


def _name(kind: str) -> str:
    return gpu_name(cuda=not paddle.device.is_compiled_with_rocm(), rocm=True) if kind == GPU else kind
