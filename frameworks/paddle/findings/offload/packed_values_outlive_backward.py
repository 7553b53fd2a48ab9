"""What a pack hook returned stays alive after a backward pass that frees its graph, as long as the loss does."""

import sys
import weakref

import paddle

alive = []


class Packed:
    def __init__(self, tensor):
        self.tensor = tensor
        alive.append(weakref.ref(self))


layer = paddle.nn.Linear(3, 2)
with paddle.autograd.saved_tensors_hooks(Packed, lambda packed: packed.tensor):
    loss = (layer(paddle.ones([4, 3])) ** 2).sum()
loss.backward()
left = sum(reference() is not None for reference in alive)
print(f"expected: 0 of {len(alive)} packed values, as backward(retain_graph=False) frees the graph")
print(f"seen: {left}")
sys.exit(0 if left == 0 else 1)
