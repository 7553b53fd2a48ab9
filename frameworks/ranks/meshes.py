"""The block of meshes on a worker group: a module of an adapter has the functions that its processes run."""

from collections.abc import Callable
from itertools import chain

from frameworks.contract import BlockWeights, MeshCase, MeshUpdate, PipelineCase
from frameworks.ranks.worker_group import WorkerGroup


class RemoteMeshes:
    """Meshes, and pipelines if the module has them; each process returns the views of its ranks, or its gradients."""

    def __init__(self, start: Callable[[], WorkerGroup], module: str) -> None:
        self._start, self._module = start, module

    def update(self, case: MeshCase) -> tuple[MeshUpdate, ...]:
        return tuple(chain.from_iterable(self._start().call(f"{self._module}:update", case)))

    def reports_unknown_name(self, weights: BlockWeights) -> bool:
        return all(self._start().call(f"{self._module}:reports_unknown_name", weights))

    def gradients(self, case: PipelineCase) -> BlockWeights:
        stages = self._start().call(f"{self._module}:pipeline_gradients", case)
        return {name: gradient for stage in stages for name, gradient in stage.items()}
