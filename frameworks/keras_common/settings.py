"""Process-wide settings of Keras: what results may depend on, and settings that a run may leak."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import keras

from fixtures.recipe import Precision


@contextmanager
def dtype_policy(policy: str | keras.DTypePolicy) -> Iterator[None]:
    """A scope in which layers are made with a dtype policy, or the one of this name."""
    former = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(former)


def policy_of(precision: Precision) -> str:
    """Name of a precision's dtype policy."""
    if precision.level == "O0":
        return "float32"
    return f"mixed_{precision.format}" if precision.level == "O1" else precision.format


def read_settings() -> dict[str, str]:
    """Every setting that `write_settings` can restore, and the distribution, by name."""
    return {
        "keras-policy": keras.config.dtype_policy().name,
        "keras-floatx": keras.config.floatx(),
        "keras-epsilon": repr(keras.config.epsilon()),
        "keras-image-data-format": keras.config.image_data_format(),
        "keras-distribution": repr(keras.distribution.distribution()),
    }


def write_settings(state: Mapping[str, str]) -> None:
    """Restores what `read_settings` returned; of distributions there is none to go back to but none at all."""
    keras.config.set_dtype_policy(state["keras-policy"])
    keras.config.set_floatx(state["keras-floatx"])
    keras.config.set_epsilon(float(state["keras-epsilon"]))
    keras.config.set_image_data_format(state["keras-image-data-format"])
    if state["keras-distribution"] == repr(None):
        keras.distribution.set_distribution(None)
