"""Devices of TensorFlow: the CPU, and every other type that `tf.config.list_physical_devices` lists."""

import tensorflow as tf

from frameworks.base import gpu_name

_COMPILER = "XLA_"
"""Begins the types of devices under which earlier versions list what XLA compiles for, in addition to their own."""


def available() -> tuple[str, ...]:
    """ "cpu" and the other devices in TensorFlow's order."""
    return ("cpu", *_types())


def place(device: str) -> str:
    """TensorFlow's name of the first such device, such as "/GPU:0"."""
    return f"/{_types().get(device, 'CPU')}:0"


def physical(device: str) -> tf.config.PhysicalDevice:
    """The first such device."""
    return tf.config.list_physical_devices(_types().get(device, "CPU"))[0]


def _types() -> dict[str, str]:
    """TensorFlow's types of the accelerators, by the suite's names."""
    listed = dict.fromkeys(each.device_type for each in tf.config.list_physical_devices())
    return {_name(kind): kind for kind in listed if kind != "CPU" and not kind.startswith(_COMPILER)}


def _name(kind: str) -> str:
    if kind != "GPU":
        return kind.lower()
    return gpu_name(cuda=tf.test.is_built_with_cuda(), rocm=tf.test.is_built_with_rocm())
