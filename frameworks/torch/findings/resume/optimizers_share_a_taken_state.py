"""An optimizer that loads the state_dict of a live optimizer keeps its tensors, and both update them."""

import sys

import torch


def make_optimizer() -> torch.optim.Optimizer:
    weight = torch.ones(1, requires_grad=True)
    weight.grad = torch.ones(1)
    return torch.optim.SGD([weight], lr=1.0, momentum=0.5)


source, receiver = make_optimizer(), make_optimizer()
source.step()
receiver.load_state_dict(source.state_dict())
source.step()  # 0.5 * 1 + 1

(state,) = receiver.state.values()
seen = state["momentum_buffer"].item()
print("expected: momentum 1.0 of an optimizer that has not stepped since the load")
print(f"seen: momentum {seen}")
sys.exit(seen != 1.0)
