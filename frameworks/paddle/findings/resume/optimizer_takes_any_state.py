"""Optimizer.set_state_dict takes a state without the moments it needs, and one with moments it has no place for."""

import sys

import paddle

layer = paddle.nn.Linear(2, 1)


def outcome(optimizer, state):
    try:
        optimizer.set_state_dict(state)
        return "taken"
    except AssertionError:
        return "refused"


schedule = paddle.optimizer.lr.PiecewiseDecay([1], [0.1, 0.05])
adam = paddle.optimizer.Adam(schedule, parameters=layer.parameters())
layer(paddle.ones([1, 2])).sum().backward()
adam.step()
fresh, sgd = (make(0.1, parameters=layer.parameters()) for make in (paddle.optimizer.Adam, paddle.optimizer.SGD))
seen = outcome(fresh, {}), outcome(sgd, adam.state_dict())
after_a_step = outcome(adam, {"LR_Scheduler": schedule.state_dict()})
print(f"expected: an empty state refused by Adam, as after a step ({after_a_step}); moments refused by SGD")
print(f"seen: {seen[0]}, {seen[1]}")
sys.exit("taken" in seen)
