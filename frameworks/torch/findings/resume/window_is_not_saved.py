"""A checkpoint of the state dictionaries holds no gradients, so one made inside a window forgets what it gathered."""

import io
import sys

import torch


def make_run():
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(layer.weight)
    return layer, torch.optim.SGD(layer.parameters(), lr=1.0)


layer, optimizer = make_run()
resumed, resumed_optimizer = make_run()
file = io.BytesIO()
(layer(torch.ones(1, 1)) / 2).sum().backward()  # the first of two micro-batches
torch.save({"model": layer.state_dict(), "optimizer": optimizer.state_dict()}, file)
file.seek(0)
saved = torch.load(file)
resumed.load_state_dict(saved["model"])
resumed_optimizer.load_state_dict(saved["optimizer"])
(resumed(torch.ones(1, 1)) / 2).sum().backward()  # the second
resumed_optimizer.step()

print("expected: 1 - 1 * (0.5 + 0.5) = 0.0")
print(f"seen: {resumed.weight.item()}")
sys.exit(0 if resumed.weight.item() == 0.0 else 1)
