"""Low-rank adapters by Qwix, over Flax NNX layers of floats or of codes, if Qwix is installed."""

import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

from fixtures.arrays import Array
from fixtures.optimizers import AdamW
from fixtures.recipe import Recipe
from frameworks.contract import Capability, LowRank
from frameworks.jax.core.layers import policy_of
from frameworks.jax.training.optimizers import is_dynamic, loss_scale

ABSENT = frozenset(
    {
        Capability.ADAPTER_ROOT,
        Capability.ADAPTER_FP4,
        Capability.ADAPTER_NESTED,
        Capability.ADAPTER_MERGE,
        Capability.ADAPTER_COPIES,
    }
)
"""Capabilities that Qwix lacks, by `adapter.toml`."""
CAPABILITIES = frozenset(
    {
        Capability.ADAPTERS,
        Capability.ADAPTER_LOW_BASE,
        Capability.ADAPTER_INT8,
        Capability.ADAPTER_INT4,
        Capability.ADAPTER_NF4,
        Capability.ADAPTER_FLOAT_INPUTS,
        Capability.LATE_ADAPTERS,
    }
)
_FOLDER = "adapters"
_CODED = ("int8", "int4", "nf4")
_NAMES = {"kernel": "weight", "bias": "bias", "kernel_lora_a": "a", "kernel_lora_b": "b"}


def _quiet() -> Any:
    """A context without the warnings that Qwix uses deprecated names of Flax."""
    return warnings.catch_warnings(action="ignore", category=DeprecationWarning)


class _Stack(nnx.Module):
    """Dense layers with a ReLU between two; all but the last are one segment, recomputed under a policy."""

    def __init__(self, weights: Mapping[str, Array], dtype: Any, policy: Any) -> None:
        self.names = tuple(sorted({name.partition(".")[0] for name in weights}))
        self.policy = policy
        for name in self.names:
            kernel, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
            layer = nnx.Linear(*kernel.shape, dtype=dtype, param_dtype=dtype, rngs=nnx.Rngs(0))
            layer.kernel[...], layer.bias[...] = jnp.asarray(kernel, dtype), jnp.asarray(bias, dtype)
            setattr(self, f"dense_{name}", layer)

    def segment(self, x: jax.Array) -> jax.Array:
        """The inputs of the last layer."""
        for name in self.names[:-1]:
            x = jax.nn.relu(getattr(self, f"dense_{name}")(x))
        return x

    def __call__(self, x: jax.Array) -> jax.Array:
        """The outputs of the last layer."""
        segment = _Stack.segment if self.policy is None else nnx.remat(_Stack.segment, policy=self.policy)
        outputs: jax.Array = getattr(self, f"dense_{self.names[-1]}")(segment(self, x))
        return outputs


class QwixNetwork:
    """A network of `qwix.apply_lora_to_model`, trained by `nnx.Optimizer` with respect to the adapters."""

    def __init__(
        self, weights: Mapping[str, Array], adapters: LowRank, recipe: Recipe, *, late: bool = False, device: jax.Device
    ) -> None:
        self._adapters, self._recipe, self._device = adapters, recipe, device
        self._kind: Any = nnx.Param
        self._average: Any = None
        with jax.default_device(self._device):
            self._scale: Any = loss_scale(recipe, device)
            dtype = jnp.dtype(adapters.base if adapters.base not in _CODED else "float32")
            policy = None if recipe.recompute is None else policy_of(recipe.recompute)
            self._model: Any = _Stack(weights, dtype, policy)
            self._sample = jnp.zeros((1, len(weights[f"{self._model.names[0]}.weight"])), dtype)
            if not late:
                self._adapt()
            self._prepare()

    def _adapt(self) -> None:
        qwix, own = import_module("qwix"), self._adapters
        coded = {"weight_qtype": own.base} if own.base in _CODED else {}
        path = "|".join(f"dense_{name}" for name in own.targets)
        rule = qwix.LoraRule(module_path=path, rank=own.rank, alpha=own.alpha, **coded)
        with _quiet():
            provider = qwix.LoraProvider([rule])
            rngs = nnx.Rngs(self._recipe.seed)
            self._model = qwix.apply_lora_to_model(self._model, provider, self._sample, rngs=rngs)
        self._kind = nnx.LoRAParam

    def _prepare(self) -> None:
        """Makes the optimizer and the compiled functions."""
        own, recipe = self._recipe.optimizer, self._recipe
        make = optax.adamw if isinstance(own, AdamW) else optax.sgd
        rule = make(own.learning_rate, **({"weight_decay": own.weight_decay} if isinstance(own, AdamW) else {}))
        if recipe.clip is not None:
            rule = optax.chain(optax.clip_by_global_norm(recipe.clip), rule)
        if recipe.accumulation > 1:
            rule = optax.MultiSteps(rule, recipe.accumulation, use_grad_mean=False).gradient_transformation()
        self._optimizer = nnx.Optimizer(self._model, rule, wrt=self._kind)

        def differentiate(model: Any, factor: jax.Array, inputs: jax.Array, gradient: jax.Array) -> Any:
            def loss(own: Any) -> jax.Array:
                return factor * (own(inputs).astype(jnp.float32) * gradient).sum()

            return nnx.grad(loss, argnums=nnx.DiffState(0, self._kind))(model)

        self._differentiate = nnx.jit(differentiate)
        self._step = nnx.jit(lambda optimizer, model, gradients: optimizer.update(model, gradients))
        self._run = nnx.jit(lambda model, inputs: model(inputs))

    def predict(self, inputs: Array) -> Array:
        with jax.default_device(self._device):
            return np.array(self._run(self._model, jnp.asarray(inputs, self._sample.dtype)))

    def _gradients(self, scale: Any, inputs: Array, gradient: Array) -> Any:
        with _quiet():
            factor = scale.scale(jnp.ones((), jnp.float32))
            return self._differentiate(self._model, factor, jnp.asarray(inputs, self._sample.dtype), gradient)

    def gradients(self, *window: tuple[Array, Array]) -> dict[str, Array]:
        with jax.default_device(self._device):
            found = [self._gradients(jmp.NoOpLossScale(), *batch) for batch in window]
            return _arrays(jax.tree.map(lambda *own: sum(own), *found))

    def update(self, *window: tuple[Array, Array]) -> None:
        with jax.default_device(self._device), _quiet():
            for batch in window:
                gradients = self._scale.unscale(self._gradients(self._scale, *batch))
                if is_dynamic(self._scale):
                    finite = jmp.all_finite(gradients)
                    self._scale = self._scale.adjust(finite)
                    if not finite:
                        continue
                self._step(self._optimizer, self._model, gradients)
            if (decay := self._recipe.average) is not None:
                state = nnx.state(self._model, self._kind)
                former = state if self._average is None else self._average
                self._average = optax.incremental_update(state, former, 1.0 - decay)

    def trainables(self) -> dict[str, Array]:
        return _arrays(nnx.state(self._model, self._kind))

    def assign(self, values: Mapping[str, Array]) -> None:
        names = {canonical: own for own, canonical in _NAMES.items()}
        for name, value in values.items():
            layer, _, part = name.partition(".")
            variable = getattr(getattr(self._model, f"dense_{layer}"), names[part])
            variable[...] = jax.device_put(value, self._device)

    def base(self) -> dict[str, Array]:
        state = nnx.to_flat_state(nnx.state(self._model, nnx.Not(self._kind)))
        return {"/".join(map(str, path)): np.array(own[...]) for path, own in state}

    def weight(self, layer: str) -> Array:
        kernel = getattr(self._model, f"dense_{layer}").kernel
        if self._adapters.base not in _CODED:
            return np.array(kernel[...]).astype(np.float32)
        with jax.default_device(self._device), _quiet():
            return np.array(import_module("qwix").dequantize(kernel.array))

    def switch_on(self) -> None:
        with jax.default_device(self._device):
            self._adapt()
            self._prepare()

    def _states(self) -> dict[str, Any]:
        return {"adapters": nnx.state(self._model, self._kind), "optimizer": nnx.state(self._optimizer)}

    def save(self, path: Path) -> None:
        tree = {name: nnx.to_pure_dict(state) for name, state in self._states().items()}
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path.absolute() / _FOLDER, tree, force=True)

    def load(self, path: Path) -> None:
        states = self._states()
        tree = {name: nnx.to_pure_dict(state) for name, state in states.items()}
        with ocp.StandardCheckpointer() as checkpointer:
            restored = checkpointer.restore(path.absolute() / _FOLDER, tree)
        for name, module in (("adapters", self._model), ("optimizer", self._optimizer)):
            nnx.replace_by_pure_dict(states[name], restored[name])
            nnx.update(module, states[name])


def _arrays(state: Any) -> dict[str, Array]:
    """The arrays of a state of layers, by canonical name."""
    flat = nnx.to_flat_state(state)
    return {f"{str(path[0]).removeprefix('dense_')}.{_NAMES[path[1]]}": np.array(own[...]) for path, own in flat}
