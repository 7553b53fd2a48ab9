"""The fixture model on TensorFlow: counts of segments, inside graphs too, and `tf.recompute_grad`."""

import tensorflow as tf

from frameworks.keras_common.network import VARIANTS as OF_KERAS
from frameworks.keras_common.network import Begins

WRAPPERS = {"tf.recompute_grad": tf.recompute_grad}
VARIANTS = (*OF_KERAS, *WRAPPERS)


class SegmentCounts:
    """A variable for each segment, which every forward of the segment increments."""

    def __init__(self) -> None:
        self._of_segments: list[tf.Variable] = []

    def __call__(self, number: int | None) -> Begins:
        """Creates the variable of a segment; inner segments have one that `read` leaves out."""
        calls = tf.Variable(0, trainable=False, dtype=tf.int64)
        if number is not None:
            self._of_segments.append(calls)
        return lambda _: calls.assign_add(1)

    def read(self) -> tuple[int, ...]:
        """Forwards of each segment."""
        return tuple(int(calls.numpy()) for calls in self._of_segments)
