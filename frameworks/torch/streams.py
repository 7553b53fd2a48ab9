"""Per-run RNG streams on top of PyTorch's process-global generators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch


class Stream:
    """The default generators' states of one run, installed only while the run draws.

    Attributes:
        states: generator state by device type, as PyTorch gives it.
    """

    def __init__(self, device: str, seed: int) -> None:
        self._devices = [torch.cuda.current_device()] if device == "cuda" else []
        self.states: dict[str, torch.Tensor] = {}
        with torch.random.fork_rng(self._devices):
            torch.manual_seed(seed)
            self._keep()

    @contextmanager
    def drawn(self, *, keep: bool = True) -> Iterator[None]:
        """Within the context, the default generators are this run's; with `keep` the stream advances."""
        with torch.random.fork_rng(self._devices):
            torch.set_rng_state(self.states["cpu"])
            if self._devices:
                torch.cuda.set_rng_state(self.states["cuda"], self._devices[0])
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
        self.states = {"cpu": torch.get_rng_state()}
        if self._devices:
            self.states["cuda"] = torch.cuda.get_rng_state(self._devices[0])
