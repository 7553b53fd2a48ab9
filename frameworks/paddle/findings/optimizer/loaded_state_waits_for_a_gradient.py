"""The loaded velocity of a weight that is frozen in the next step is missing from the state_dict after that step."""

import sys

import paddle
from paddle.utils import unique_name


def after_a_step(loaded=None):
    with unique_name.guard():
        weights = [paddle.create_parameter([1], "float32") for _ in range(2)]
        optimizer = paddle.optimizer.Momentum(1.0, 0.5, parameters=weights)
        sum(weight.sum() for weight in weights).backward()
        if loaded:
            optimizer.set_state_dict(loaded)
            weights[1].stop_gradient = True
        optimizer.step()
    return optimizer.state_dict()


saved = after_a_step()
expected, seen = sorted(saved), sorted(after_a_step(saved))
print("expected:", expected)
print("seen:", seen)
sys.exit(seen != expected)
