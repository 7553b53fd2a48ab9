"""Low-rank adapters over a float, 16-bit or quantized base, as plainly as the specification reads: float64 products."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd import grad

from fixtures.arrays import FORMATS, Array
from fixtures.recipe import DynamicScaling, Recipe
from frameworks.contract import Conventions, LowRank
from frameworks.reference.core.rounding import Nearest
from frameworks.reference.training.optimizers import RULES, Arithmetic

_MAGNITUDES = np.array([0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25])
# fmt: off
_NORMAL = np.array([
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
])
# fmt: on
_TABLES: Mapping[str, Array] = {
    "int8": np.arange(-127, 128) / 127,
    "int4": np.arange(-7, 8) / 7,
    "fp4": np.sort(np.concatenate([_MAGNITUDES, -_MAGNITUDES[1:]])),
    "nf4": _NORMAL,
    "nested": _NORMAL,
}
"""The values of codes in units of their column's absmax; nf4 is Dettmers et al. 2023, arXiv:2305.14314, appendix E."""
_FILE = "adapters.pickle"


class ReferenceAdaptedNetwork:
    """A network with adapters. `frozen` is the base as stored, `own` what trains; faults override a method."""

    def __init__(
        self,
        weights: Mapping[str, Array],
        adapters: LowRank,
        recipe: Recipe,
        *,
        late: bool = False,
        conventions: Conventions,
    ) -> None:
        self.adapters, self.recipe, self.conventions = adapters, recipe, conventions
        self.layers = sorted({name.partition(".")[0] for name in weights})
        if unknown := set(adapters.targets) - set(self.layers):
            raise ValueError(f"no layer has the name of a target: got {sorted(unknown)}, want some of {self.layers}")
        self.frozen: dict[str, Array] = {}
        self.own: dict[str, Array] = {}
        self.slots: dict[str, dict[str, Array]] = {}
        self.average: dict[str, Array] = {}
        self.count, self.is_merged = 0, False
        if late:
            self.own = {name: value.copy() for name, value in weights.items()}
        else:
            self._freeze(weights)

    def _freeze(self, weights: Mapping[str, Array]) -> None:
        for name, value in weights.items():
            self.store(name, value)
        rng, low = np.random.default_rng([self.recipe.seed, 21]), self.conventions.adapter_format == "base"
        dtype = np.dtype(FORMATS[self._format].dtype if low else np.float32)
        self.own = {}
        for layer in self.adapters.targets:
            inputs, outputs = weights[f"{layer}.weight"].shape
            self.own[f"{layer}.a"] = rng.uniform(-1.0, 1.0, (inputs, self.adapters.rank)).astype(dtype)
            self.own[f"{layer}.b"] = np.zeros((self.adapters.rank, outputs), dtype)
            if self.conventions.adapter_bias == "trains":
                self.own[f"{layer}.bias"] = weights[f"{layer}.bias"].copy()
        for layer in self.adapters.copied:
            self.own |= {f"{layer}.{part}": weights[f"{layer}.{part}"].copy() for part in ("weight", "bias")}

    @property
    def _format(self) -> str:
        return self.adapters.base if self.adapters.base in FORMATS else "float32"

    # the base

    def store(self, name: str, value: Array) -> None:
        """Stores an array of the base in its format, a quantized one as codes and the absmax of each column."""
        layer, _, part = name.partition(".")
        table = _TABLES.get(self.adapters.base) if part == "weight" and layer in self.adapters.targets else None
        if table is None:
            self.frozen[name] = value.astype(FORMATS[self._format].dtype)
            return
        scale = np.abs(value).max(0)
        if self.adapters.base == "nested":
            scale = scale.max() * (np.ceil(255 * scale / scale.max()) / 255)
        quotients = value / np.where(scale == 0, 1, scale)
        self.frozen[name] = np.abs(quotients[..., None] - table).argmin(-1).astype(np.uint8)
        self.frozen[f"{name}.scale"] = scale.astype(np.float32)

    def read(self, name: str) -> Array:
        """A stored array in float64."""
        value = self.frozen[name]
        if f"{name}.scale" in self.frozen:
            return np.asarray(_TABLES[self.adapters.base][value] * self.frozen[f"{name}.scale"].astype(np.float64))
        return value.astype(np.float64)

    def base(self) -> dict[str, Array]:
        return {name: value.copy() for name, value in self.frozen.items()}

    def weight(self, layer: str) -> Array:
        return self.read(f"{layer}.weight").astype(np.float32)

    def merge(self) -> None:
        if not self.is_merged:
            self.add_to_weights(1.0)
        self.is_merged = True

    def unmerge(self) -> None:
        if self.is_merged:
            self.add_to_weights(-1.0)
        self.is_merged = False

    def add_to_weights(self, sign: float) -> None:
        """Adds the adapters to the stored weights, or subtracts them."""
        for layer in self.adapters.targets:
            a, b = (self.own[f"{layer}.{part}"].astype(np.float64) for part in "ab")
            self.store(f"{layer}.weight", self.read(f"{layer}.weight") + sign * self.factor() * (a @ b))

    # forward and backward

    def factor(self) -> float:
        """The factor of A·B."""
        return self.adapters.factor

    def values(self) -> dict[str, Array]:
        """Everything that a forward pass uses, in float64."""
        names = [name for name in self.frozen if not name.endswith(".scale")]
        return {name: self.read(name) for name in names} | {n: v.astype(np.float64) for n, v in self.own.items()}

    def forward(self, inputs: Array, values: Mapping[str, Array]) -> Array:
        """The outputs."""
        x = inputs.astype(np.float64)
        for layer in self.layers:
            y = anp.matmul(x, values[f"{layer}.weight"]) + values[f"{layer}.bias"]
            if f"{layer}.a" in values and not self.is_merged:
                product = anp.matmul(anp.matmul(x, values[f"{layer}.a"]), values[f"{layer}.b"])
                y = y + self.factor() * product
            x = y if layer == self.layers[-1] else anp.where(y > 0, y, 0.0)
        return x

    def differentiate(self, inputs: Array, gradient: Array) -> dict[str, Array]:
        """The gradients of one micro-batch; recomputation changes nothing in them."""
        values = self.values()

        def loss(own: dict[str, Array]) -> Any:
            return anp.sum(self.forward(inputs, {**values, **own}) * gradient)

        return dict(grad(loss)({name: values[name] for name in self.own}))

    def gradients(self, *window: tuple[Array, Array]) -> dict[str, Array]:
        total: dict[str, Array] = {}
        for batch in window:
            for name, value in self.differentiate(*batch).items():
                total[name] = total.get(name, 0.0) + value
        return {name: value.astype(np.float32) for name, value in total.items()}

    def predict(self, inputs: Array) -> Array:
        return self.forward(inputs, self.values()).astype(FORMATS[self._format].dtype)

    def predict_base(self, inputs: Array) -> Array:
        names = [name for name in self.frozen if not name.endswith(".scale")]
        return self.forward(inputs, {name: self.read(name) for name in names}).astype(np.float32)

    # training

    def update(self, *window: tuple[Array, Array]) -> None:
        gradients, scaling = self.gradients(*window), self.recipe.scaling
        if isinstance(scaling, DynamicScaling):
            with np.errstate(over="ignore"):
                scaled = {name: value * np.float32(scaling.initial or 1.0) for name, value in gradients.items()}
            if not all(np.isfinite(value).all() for value in scaled.values()):
                return
        norm = float(np.sqrt(sum(np.square(value, dtype=np.float64).sum() for value in gradients.values())))
        shrink = 1.0 if self.recipe.clip is None else min(1.0, self.recipe.clip / norm)
        self.count += 1
        for name, gradient in gradients.items():
            self.step(name, gradient * np.float32(shrink))

    def step(self, name: str, gradient: Array) -> None:
        """Moves one array by its gradient, and the average of the array."""
        rule = RULES[type(self.recipe.optimizer)](
            self.recipe.optimizer, self.conventions, Arithmetic(Nearest(), "float32")
        )
        slots = self.slots.get(name) or {slot: np.zeros_like(gradient) for slot in rule.slots(self.recipe.optimizer)}
        rate = self.recipe.optimizer.learning_rate
        value, self.slots[name] = rule(self.own[name], slots, gradient, rate, self.count)
        self.own[name] = value.astype(self.own[name].dtype)
        if (decay := self.recipe.average) is not None:
            former = self.average.get(name, value)
            self.average[name] = decay * former + (1.0 - decay) * value

    def trainables(self) -> dict[str, Array]:
        return {name: value.copy() for name, value in self.own.items()}

    def assign(self, values: Mapping[str, Array]) -> None:
        for name, value in values.items():
            self.own[name] = value.astype(self.own[name].dtype)

    def switch_on(self) -> None:
        self._freeze(self.own)
        self.slots, self.count = {}, 0

    # files

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        state = {"own": self.own, "slots": self.slots, "average": self.average, "count": self.count}
        (path / _FILE).write_bytes(pickle.dumps(state))

    def load(self, path: Path) -> None:
        state = pickle.loads((path / _FILE).read_bytes())
        self.take({**state, "own": self.match(state["own"])})

    def match(self, saved: Mapping[str, Array]) -> dict[str, Array]:
        """What a file has for the arrays that train.

        Raises:
            ValueError: the file is one of other adapters.
        """
        shapes, own = ({name: value.shape for name, value in part.items()} for part in (saved, self.own))
        if shapes != own:
            raise ValueError(f"the file is one of other adapters: got {shapes}, want {own}")
        return dict(saved)

    def take(self, state: Mapping[str, Any]) -> None:
        """Takes over what a file of the same adapters holds."""
        vars(self).update(state)
