"""An optimizer's state belongs to generated names, so that a second network in one process cannot go on from it."""

import sys

import paddle


def make_layer_and_optimizer():
    layer = paddle.nn.Linear(2, 1)
    return layer, paddle.optimizer.Adam(0.1, parameters=layer.parameters())


def step(layer, optimizer):
    layer(paddle.ones([1, 2])).sum().backward()
    optimizer.step()


layer, optimizer = make_layer_and_optimizer()
step(layer, optimizer)
resumed_layer, resumed_optimizer = make_layer_and_optimizer()
resumed_layer.set_state_dict(layer.state_dict())
resumed_optimizer.set_state_dict(optimizer.state_dict())
try:
    step(resumed_layer, resumed_optimizer)
    seen = "it goes on"
except AssertionError as error:
    seen = f"AssertionError: {error}"
print("expected: a network of the same layers, loaded with the first one's state, goes on")
print(f"seen: {seen}")
sys.exit(seen != "it goes on")
