"""A compiled backward pass that has run once without retain_graph refuses retain_graph from then on."""

import sys

import torch

body, first_head, second_head = (torch.nn.Linear(4, 4) for _ in range(3))


def losses(x):
    features = torch.tanh(body(x))
    return first_head(features).square().sum(), second_head(features).square().sum()


compiled = torch.compile(losses)
sum(compiled(torch.ones(2, 4))).backward()
first, second = compiled(torch.ones(2, 4))
try:
    first.backward(retain_graph=True)
    second.backward()
    seen = "two backward passes"
except RuntimeError as error:
    seen = f"RuntimeError: {error}"

print("expected: two backward passes, as in eager mode")
print(f"seen: {seen}")
sys.exit(0 if seen == "two backward passes" else 1)
