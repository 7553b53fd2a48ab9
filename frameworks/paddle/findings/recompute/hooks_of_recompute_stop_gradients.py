"""Inside recompute(use_reentrant=False) a PyLayer's saved tensor that needs a gradient comes back as if it did not."""

import sys

import paddle
from paddle.distributed.fleet.utils import recompute


class Product(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensor()
        asked.append((not a.stop_gradient, not b.stop_gradient))
        return (None if a.stop_gradient else gradient * b), (None if b.stop_gradient else gradient * a)


asked: list[tuple[bool, bool]] = []
for reentrant in (True, False):
    a, b = paddle.ones([2]), paddle.ones([2])
    a.stop_gradient = False
    recompute(lambda a, b: Product.apply(a, b), a, b, use_reentrant=reentrant).sum().backward()
print("expected:", expected := [(True, False)] * 2)
print("seen:    ", asked)
sys.exit(int(asked != expected))
