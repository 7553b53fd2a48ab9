"""A compiled convolution of images permuted from channels-last raises where their sizes are symbolic."""

import logging
import sys

import torch

logging.disable(logging.WARNING)
layer = torch.nn.Conv2d(3, 4, 3)


def shape(compiled, size):
    try:
        return tuple(compiled(torch.randn(2, size, size, 3)).shape)
    except Exception as error:  # of the compiler
        return str(error).splitlines()[0]


seen = []
for dynamic, sizes in ((None, (28, 30)), (True, (28,))):
    torch.compiler.reset()
    compiled = torch.compile(lambda images: layer(images.permute(0, 3, 1, 2)), dynamic=dynamic)
    seen += [shape(compiled, size) for size in sizes]

expected = [(2, 4, 26, 26), (2, 4, 28, 28), (2, 4, 26, 26)]
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(0 if seen == expected else 1)
