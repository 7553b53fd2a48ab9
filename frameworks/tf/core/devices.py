"""TensorFlow's devices by the suite's names."""

from contextlib import suppress

import tensorflow as tf

from frameworks.base import gpu_name


def available() -> tuple[str, ...]:
    """ "cpu" and the other devices in TensorFlow's order."""
    return ("cpu", *_types())


def place(device: str) -> str:
    """TensorFlow's name of the first device of this type, such as "/GPU:0"."""
    return f"/{_types().get(device, 'CPU')}:0"


def physical(device: str) -> tf.config.PhysicalDevice:
    """The first device of this type."""
    return tf.config.list_physical_devices(_types().get(device, "CPU"))[0]


def _types() -> dict[str, str]:
    """TensorFlow's types of the accelerators, by the suite's names."""
    gpu = gpu_name(cuda=tf.test.is_built_with_cuda(), rocm=tf.test.is_built_with_rocm())
    listed = dict.fromkeys(device.device_type for device in tf.config.list_physical_devices())
    others = [kind for kind in listed if kind != "CPU" and not kind.startswith("XLA_")]  # earlier versions list both
    return {gpu if kind == "GPU" else kind.lower(): kind for kind in others}


def grow_memory() -> None:
    """Allocates GPU memory on demand: by default one of the suites' processes would take all of it."""
    for gpu in tf.config.list_physical_devices("GPU"):
        with suppress(RuntimeError):  # this GPU is in use already
            tf.config.experimental.set_memory_growth(gpu, True)


def has_tf32(device: str) -> bool:
    """Returns whether the device multiplies in TensorFloat-32."""
    if device == "cpu":
        return False
    result = tf.config.experimental.get_device_details(physical(device)).get("compute_capability", (0, 0))
    return bool(tuple(result) >= (8, 0))
