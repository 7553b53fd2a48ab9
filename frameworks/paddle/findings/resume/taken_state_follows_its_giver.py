"""An optimizer that takes another one's state_dict shares its tensors: the other's next step changes its velocity."""

import sys

import paddle
from paddle.nn.initializer import Constant
from paddle.utils import unique_name


def optimizer():
    with unique_name.guard():
        weight = paddle.create_parameter([1], "float32", default_initializer=Constant(1.0))
    weight.sum().backward()
    return paddle.optimizer.Momentum(1.0, 0.5, parameters=[weight])


giver, taker = optimizer(), optimizer()
giver.step()
taker.set_state_dict(giver.state_dict())
giver.step()  # 0.5 * 1 + 1
(velocity,) = taker.state_dict().values()
seen = velocity.item()
print("expected: velocity 1.0, which the optimizer had when its state was taken")
print(f"seen: velocity {seen}")
sys.exit(seen != 1.0)
