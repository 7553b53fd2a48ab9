"""A load rounds the float32 momentum of a float16 weight to float16."""

import sys

import torch

weight = torch.zeros(1, dtype=torch.float16, requires_grad=True)
weight.grad_dtype = torch.float32
optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
weight.grad = torch.full([1], 2.0**-24 + 2.0**-30)
optimizer.step()
resumed = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
resumed.load_state_dict(optimizer.state_dict())
before, after = (stepper.state[weight]["momentum_buffer"] for stepper in (optimizer, resumed))

print(f"expected: the momentum that was saved, {before.item()} in {before.dtype}")
print(f"seen: {after.item()} in {after.dtype}")
sys.exit(int(not torch.equal(before, after.to(before.dtype))))
