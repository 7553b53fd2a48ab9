"""Other public calls of Keras' optimizers, by the names in `ways.toml` of a backend; "" is the default one."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from fixtures.recipe import Recipe, Steps
from frameworks.keras_common.layer_outputs import Tensor


class Piecewise(keras.optimizers.schedules.LearningRateSchedule):
    """A user's own schedule of piecewise constant rates."""

    def __init__(self, boundaries: Sequence[int], rates: Sequence[float]) -> None:
        super().__init__()
        self.boundaries, self.rates = list(boundaries), list(rates)

    def __call__(self, step: Tensor) -> Tensor:
        boundaries = keras.ops.convert_to_tensor(self.boundaries, "int32")
        place = keras.ops.searchsorted(boundaries, keras.ops.reshape(keras.ops.cast(step, "int32"), (1,)), side="right")
        return keras.ops.take(keras.ops.convert_to_tensor(self.rates, "float32"), place[0])

    def get_config(self) -> dict[str, Any]:
        return {"boundaries": self.boundaries, "rates": self.rates}


def made(
    recipe: Recipe, kind: Callable[..., keras.optimizers.Optimizer], given: dict[str, Any]
) -> keras.optimizers.Optimizer:
    """An optimizer with a rate, without one for a schedule that its caller assigns."""
    if isinstance(recipe.schedule, Steps):
        base = recipe.optimizer.learning_rate
        rates = [base * factor for factor in recipe.schedule.factors]
        own = Piecewise(recipe.schedule.boundaries, rates)
        match recipe.way("schedule"):
            case "assigned":
                given = given | {"learning_rate": base * recipe.schedule.factor(0)}
            case "subclass":
                given = given | {"learning_rate": own}
            case "callable":
                optimizer: keras.optimizers.Optimizer = kind(
                    **given | {"learning_rate": lambda: own(optimizer.iterations)}
                )
                return optimizer
    return kind(**given)


def rebuilt(recipe: Recipe, optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer, or one that is made from its configuration."""
    if recipe.way("optimizer") != "from-config":
        return optimizer
    own = {"Piecewise": Piecewise}
    return keras.optimizers.deserialize(keras.optimizers.serialize(optimizer), custom_objects=own)


def set_rate(recipe: Recipe, optimizers: Sequence[keras.optimizers.Optimizer]) -> None:
    """Assigns the rate of the next update, where the recipe's way has no schedule in the optimizer."""
    if isinstance(recipe.schedule, Steps) and recipe.way("schedule") == "assigned":
        for place, each in enumerate(optimizers):
            own = recipe.of_groups[min(place, recipe.groups - 1)]
            each.learning_rate = own.learning_rate * recipe.schedule.factor(int(each.iterations))
