"""What a pack hook returned stays alive after a backward pass that frees its graph, as long as the loss does."""

import sys
import weakref

import paddle

references = []


class Packed:
    def __init__(self, tensor):
        self.tensor = tensor
        references.append(weakref.ref(self))


layer = paddle.nn.Linear(3, 2)
with paddle.autograd.saved_tensors_hooks(Packed, lambda packed: packed.tensor):
    loss = (layer(paddle.ones([4, 3])) ** 2).sum()
loss.backward()
alive = sum(reference() is not None for reference in references)
print(f"expected: 0 of {len(references)} packed values, as backward(retain_graph=False) frees the graph")
print(f"seen: {alive}")
sys.exit(0 if alive == 0 else 1)
