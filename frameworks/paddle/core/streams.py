"""Per-run copies of Paddle's process-wide state: random generator, generated names, last precision scope."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import paddle
from paddle.amp.auto_cast import amp_global_state
from paddle.utils import unique_name

from fixtures.arrays import Array


class Stream:
    """A random stream of its own over Paddle's one generator for each device.

    Inside `apart()` generated names start again (so that parameters and optimizer slots have the same names in every
    run and process), and the leaking `amp_dtype` is restored at its end; inside `open()` the generator also has this
    stream's state.
    """

    def __init__(self, seed: int) -> None:
        before = paddle.get_rng_state()
        paddle.seed(seed)
        self.state = paddle.get_rng_state()
        paddle.set_rng_state(before)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Context without random numbers."""
        dtype = amp_global_state().amp_dtype
        try:
            with unique_name.guard():
                yield
        finally:
            amp_global_state().amp_dtype = dtype

    @contextmanager
    def open(self) -> Iterator[None]:
        """Context with random numbers."""
        outer = paddle.get_rng_state()
        paddle.set_rng_state(self.state)
        try:
            with self.apart():
                yield
        finally:
            self.state = paddle.get_rng_state()
            paddle.set_rng_state(outer)

    def words(self) -> Array:
        """The generator's state as integers; the printed form also holds an address, which is left out."""
        numbers = [int(word) % 2**64 for word in str(self.state[0]).split() if not word.startswith("0x")]
        return np.array(numbers, np.uint64)
