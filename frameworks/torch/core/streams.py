"""Per-run RNG streams on top of PyTorch's process-global generators."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from frameworks.torch.core.devices import CPU, index, module, random_apart


class Stream:
    """The default generators' states of one run, installed only while the run draws.

    Attributes:
        states: generator state by device type, as PyTorch gives it.
    """

    def __init__(self, device: str, seed: int) -> None:
        self._device = device
        self._index = None if device == CPU else index(device)
        self.states: dict[str, torch.Tensor] = {}
        with random_apart(device):
            torch.manual_seed(seed)
            self._keep()

    @contextmanager
    def drawn(self, *, keep: bool = True) -> Iterator[None]:
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
        """Sets other states; PyTorch refuses invalid ones."""
        self.states = {name: state.clone() for name, state in states.items()}
        with self.drawn():
            pass

    def _keep(self) -> None:
        self.states = {CPU: torch.get_rng_state()}
        if self._index is not None:
            self.states[self._device] = module(self._device).get_rng_state(self._index)
