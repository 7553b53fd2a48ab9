"""On a CPU softmax, log_softmax and cross_entropy take no logit to be more than 64 below the largest one."""

import math
import sys

import paddle

paddle.device.set_device("cpu")
logits = paddle.to_tensor([[0.0, 80.0]], stop_gradient=False)
exact = 80.0 + math.log1p(math.exp(-80.0))
softmax = paddle.nn.functional.softmax(logits)[0, 0].item()
log_softmax = paddle.nn.functional.log_softmax(logits)[0, 0].item()
loss = paddle.nn.functional.cross_entropy(logits, paddle.to_tensor([0])).item()
print(f"expected: probability {math.exp(-exact):.4e}, logarithm {-exact}, cross entropy {exact}")
print(f"seen: {softmax:.4e}, {log_softmax}, {loss}")
sys.exit(abs(log_softmax + exact) > 1e-4 or abs(loss - exact) > 1e-4 or softmax > 1e-30)
