"""A saved value that was transposed comes back from hooks with its elements in another order."""

import sys

import paddle

x = paddle.to_tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], stop_gradient=False)
w = paddle.to_tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]], stop_gradient=False)
with paddle.autograd.saved_tensors_hooks(lambda saved: saved.clone(), lambda saved: saved):
    product = x.t() * w
product.sum().backward()
seen = w.grad.tolist()
print("expected: [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]")
print(f"seen: {seen}")
sys.exit(seen != [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]])
