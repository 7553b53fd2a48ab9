"""Process-wide switches of TensorFlow and Keras (read, scoped, restored and reported), and devices."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config

from frameworks.base import gpu_name, processor

THREADS = 1
REWRITES: dict[str, str] = {"float16": "auto_mixed_precision", "bfloat16": "auto_mixed_precision_onednn_bfloat16"}
"""Option of `tf.config.optimizer.set_experimental_options` that rewrites graphs to a format."""
NO_REWRITE = "none"
"""The option that switches all rewrites off; None leaves the switches unchanged."""

_LISTS = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
_LISTED = tuple(
    f"{_LISTS}{name}LIST_{verb}" for name in ("ALLOW", "INFER", "DENY", "CLEAR") for verb in ("ADD", "REMOVE")
)
"""Environment variables that a rewrite reads at each run: operations to add to and to remove from its lists."""


def pin_threads(between: int = THREADS) -> None:
    """Sets one thread within and `between` threads between operations, unless TensorFlow has started."""
    with suppress(RuntimeError):  # TensorFlow has started: its numbers of threads cannot change any more
        tf.config.threading.set_intra_op_parallelism_threads(THREADS)
        tf.config.threading.set_inter_op_parallelism_threads(between)


@contextmanager
def tensor_float_32(allowed: bool | None) -> Iterator[None]:
    """Allows or forbids TensorFloat-32 in products of float32 matrices; None: allowed, TensorFlow's default."""
    former = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(allowed is not False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(former)


@contextmanager
def graph_rewrite(option: str | None) -> Iterator[None]:
    """Context in which functions are rewritten by the grappler pass `option` only."""
    if option is None:
        yield
        return
    on = _switched_on()
    former = {name: name in on for name in REWRITES.values()}
    wanted = {name: name == option for name in former}
    if wanted == former:
        yield
        return
    tf.config.optimizer.set_experimental_options(wanted)
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options(former)


@contextmanager
def rewrite_lists(low: Sequence[str], wide: Sequence[str]) -> Iterator[None]:
    """A context in which rewrites cast graph operations in `low` and not those in `wide`; none may be in both."""
    former = {name: os.environ.get(name) for name in _LISTED}
    both = [*low, *wide]
    lists = {"ALLOWLIST_ADD": low, "DENYLIST_ADD": wide, "ALLOWLIST_REMOVE": wide, "DENYLIST_REMOVE": low}
    lists |= {"INFERLIST_REMOVE": both, "CLEARLIST_REMOVE": both}
    os.environ.update({_LISTS + name: ",".join(named) for name, named in lists.items()})
    try:
        yield
    finally:
        _put_back(former)


def _put_back(former: Mapping[str, str | None]) -> None:
    """Sets environment variables to their former values; None removes one."""
    for name, value in former.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _switched_on() -> list[str]:
    """Names of the options of graph optimization that are on."""
    return sorted(name for name, on in tf.config.optimizer.get_experimental_options().items() if on)


def read_global_state() -> dict[str, str]:
    """Every process-wide setting that a run may leak; an optimizer option that is off reads as if it was never set."""
    return {
        "dtype_policy": keras.config.dtype_policy().name,
        "floatx": keras.config.floatx(),
        "epsilon": repr(keras.config.epsilon()),
        "image_data_format": keras.config.image_data_format(),
        "traceback_filtering": str(keras.config.is_traceback_filtering_enabled()),
        "functions_run_eagerly": str(tf.config.functions_run_eagerly()),
        "optimizer_options": ",".join(_switched_on()),
        "rewrite_lists": ";".join(f"{name}={os.environ[name]}" for name in _LISTED if name in os.environ),
        "optimizer_jit": str(tf.config.optimizer.get_jit()),
        "intra_op_threads": str(tf.config.threading.get_intra_op_parallelism_threads()),
        "inter_op_threads": str(tf.config.threading.get_inter_op_parallelism_threads()),
        "soft_device_placement": str(tf.config.get_soft_device_placement()),
        "tensor_float_32": str(tf.config.experimental.tensor_float_32_execution_enabled()),
    }


def write_global_state(state: Mapping[str, str]) -> None:
    """Restores what `read_global_state` returned; thread counts cannot be changed once TensorFlow runs."""
    keras.config.set_dtype_policy(state["dtype_policy"])
    keras.config.set_floatx(state["floatx"])
    keras.config.set_epsilon(float(state["epsilon"]))
    keras.config.set_image_data_format(state["image_data_format"])
    if state["traceback_filtering"] == "True":
        keras.config.enable_traceback_filtering()
    else:
        keras.config.disable_traceback_filtering()
    tf.config.run_functions_eagerly(state["functions_run_eagerly"] == "True")
    wanted = {name for name in state["optimizer_options"].split(",") if name}
    differing = wanted.symmetric_difference(_switched_on())
    if differing:
        tf.config.optimizer.set_experimental_options({name: name in wanted for name in differing})
    listed = dict(entry.split("=", 1) for entry in state["rewrite_lists"].split(";") if entry)
    _put_back({name: listed.get(name) for name in _LISTED})
    tf.config.optimizer.set_jit(state["optimizer_jit"])
    tf.config.set_soft_device_placement(state["soft_device_placement"] == "True")
    tf.config.experimental.enable_tensor_float_32_execution(state["tensor_float_32"] == "True")


def describe(device: str) -> dict[str, str]:
    """Settings that results may depend on: versions, device, driver, thread counts, every switch.

    Only `tensorflow.python.framework.config` tells whether operations are deterministic; `tf.config` has no more than
    the switch.
    """
    result = read_global_state()
    del result["traceback_filtering"]
    if hasattr(keras.config, "is_flash_attention_enabled"):
        result["flash_attention"] = str(keras.config.is_flash_attention_enabled())
    result |= {
        "backend": keras.config.backend(),
        "op_determinism": str(config.is_op_determinism_enabled()),
        "synchronous_execution": str(tf.config.experimental.get_synchronous_execution()),
        "device_policy": str(tf.config.experimental.get_device_policy()),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "device": processor(),
        "built_from": tf.version.GIT_VERSION,
        "built_with": tf.version.COMPILER_VERSION,
        "TF_ENABLE_ONEDNN_OPTS": os.environ.get("TF_ENABLE_ONEDNN_OPTS", ""),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }
    if device != "cpu":
        accelerator = physical(device)
        details = tf.config.experimental.get_device_details(accelerator)
        build = tf.sysconfig.get_build_info()
        result["device"] = str(details.get("device_name", accelerator.name))
        result["compute_capability"] = ".".join(map(str, details.get("compute_capability", ())))
        result["cuda"] = str(build.get("cuda_version", ""))
        result["cudnn"] = str(build.get("cudnn_version", ""))
    return result


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
