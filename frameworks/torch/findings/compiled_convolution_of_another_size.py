"""A compiled convolution of permuted channels-last images raises when images of a second size come."""

import logging
import sys

import torch

logging.disable(logging.WARNING)
layer = torch.nn.Conv2d(3, 4, 3)
compiled = torch.compile(lambda images: layer(images.permute(0, 3, 1, 2)))
seen = []
for size in (28, 30):
    try:
        seen.append(tuple(compiled(torch.randn(2, size, size, 3)).shape))
    except Exception as error:
        seen.append(str(error).splitlines()[0])

print("expected: [(2, 4, 26, 26), (2, 4, 28, 28)]")
print(f"seen: {seen}")
sys.exit(0 if seen == [(2, 4, 26, 26), (2, 4, 28, 28)] else 1)
