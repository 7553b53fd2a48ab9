"""Parameters and the optimizer's state in the host's memory between uses, by JAX's memory kinds."""

from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from fixtures.recipe import Offload
from frameworks.jax.core.settings import PINNED_HOST
from frameworks.jax.training.optimizers import RunState
from frameworks.jax.training.steps import arrays_of
from frameworks.jax.training.trainer import JaxTrainer


class OffloadedTrainer(JaxTrainer):
    """A run whose state is fetched on read and offloaded on assignment."""

    _offloaded: RunState

    @property
    def train_state(self) -> RunState:
        """The state on the devices that compute."""
        return self._with_kinds(self._offloaded, self.device.default_memory().kind)

    @train_state.setter
    def train_state(self, state: RunState) -> None:
        self._offloaded = self._with_kinds(state, PINNED_HOST)

    @property
    def _offload(self) -> Offload:
        assert self.recipe.offload is not None
        return self.recipe.offload

    def _with_kinds(self, state: RunState, kind: str) -> RunState:
        fields = {"params": "parameters", "opt_state": "optimizer"}
        moved = {
            name: _move_arrays(getattr(state, name), kind) for name, of in fields.items() if of in self._offload.what
        }
        return cast(RunState, state.replace(**moved))

    def offloaded_bytes(self) -> dict[str, int]:
        kinds = {
            "parameters": jax.tree.leaves(self._offloaded.params),
            "optimizer": arrays_of(self._offloaded, "optimizer"),
        }
        return {kind: sum(map(_offloaded_bytes, kinds[kind])) for kind in self._offload.what}


def _offloaded_bytes(value: jax.Array) -> int:
    """Bytes of an array in the host's memory; a copy of it for each device counts."""
    if value.sharding.memory_kind != PINNED_HOST:
        return 0
    return sum(shard.data.nbytes for shard in value.addressable_shards)


def _move_arrays(tree: Any, kind: str) -> Any:
    """The tree with its arrays in another memory; NumPy arrays read from a rank stay."""

    def move(value: Any) -> Any:
        is_placed = isinstance(value, jax.Array)
        return jax.device_put(value, value.sharding.with_memory_kind(kind)) if is_placed else value

    return jax.tree.map(move, tree)


def activations_leave() -> bool:
    """Whether what a checkpoint policy offloads takes memory of the host's in the compiled program."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["kept"],
        offload_src="device",
        offload_dst=PINNED_HOST,
    )

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(checkpoint_name(jnp.sin(x), "kept")))

    compiled = jax.jit(jax.grad(jax.checkpoint(loss, policy=policy))).lower(jnp.ones((64, 64))).compile()
    memory = compiled.memory_analysis()
    return memory is not None and memory.host_temp_size_in_bytes > 0


def disk_is_a_memory() -> bool:
    """Whether an array can be put into a memory kind of files."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="disk")
    return bool(jax.device_put(jnp.ones(2), sharding).sharding.memory_kind == "disk")
