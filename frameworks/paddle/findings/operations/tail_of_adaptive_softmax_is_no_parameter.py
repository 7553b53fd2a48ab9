"""AdaptiveLogSoftmaxWithLoss keeps the weights of its tail in a list, where no optimizer and no state finds them."""

import sys

import paddle

layer = paddle.nn.AdaptiveLogSoftmaxWithLoss(4, 5, [2])
layer.tail_weights[0][0].fill_(7.0)
other = paddle.nn.AdaptiveLogSoftmaxWithLoss(4, 5, [2])
other.set_state_dict(layer.state_dict())
print("expected: 3 parameters, and a loaded weight of 7.0")
seen = len(layer.parameters()), other.tail_weights[0][0][0, 0].item() == 7.0
print(f"seen: {seen[0]} parameter{'s' * (seen[0] > 1)}, and {'a loaded' if seen[1] else 'another'} weight")
sys.exit(seen != (3, True))
