"""An optimizer's state belongs to generated names, so that a second network in one process cannot go on from it."""

import sys
from typing import Any

import paddle


def make_layer_and_optimizer() -> tuple[Any, Any]:
    layer = paddle.nn.Linear(2, 1)
    return layer, paddle.optimizer.Adam(0.1, parameters=layer.parameters())


def step(layer: Any, optimizer: Any) -> None:
    layer(paddle.ones([1, 2])).sum().backward()
    optimizer.step()


(first, its), (second, other) = make_layer_and_optimizer(), make_layer_and_optimizer()
step(first, its)
second.set_state_dict(first.state_dict())
other.set_state_dict(its.state_dict())
try:
    step(second, other)
    seen = "it goes on"
except AssertionError as error:
    seen = f"AssertionError: {error}"
print("expected: a network of the same layers, loaded with the first one's state, goes on")
print(f"seen: {seen}")
sys.exit(seen != "it goes on")
