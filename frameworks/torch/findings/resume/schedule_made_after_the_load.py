"""A schedule that is made after its optimizer was loaded, and then loaded itself, leaves it at other rates."""

import sys

from torch import ones, optim
from torch.optim.lr_scheduler import LambdaLR, LinearLR, OneCycleLR, SequentialLR

MAKE = {
    "LambdaLR": lambda sgd: LambdaLR(sgd, lambda step: 0.8**step),
    "OneCycleLR": lambda sgd: OneCycleLR(sgd, 1.0, total_steps=20),
    "LinearLR": lambda sgd: LinearLR(sgd, 0.1, total_iters=10),
    "SequentialLR": lambda sgd: SequentialLR(sgd, [LinearLR(sgd, 0.1, total_iters=10), LinearLR(sgd, 0.5)], [9]),
}
rates = {False: {}, True: {}}
for late in rates:  # whether the schedule is made before or after the load
    for name, make in MAKE.items():
        saved, loaded = (optim.SGD([ones(1, requires_grad=True)], lr=1.0) for _ in range(2))
        schedules = [make(sgd) for sgd in ([saved] if late else [saved, loaded])]
        saved.step()
        schedules[0].step()
        loaded.load_state_dict(saved.state_dict())
        schedule = make(loaded) if late else schedules[1]
        schedule.load_state_dict(schedules[0].state_dict())
        first = loaded.param_groups[0]["lr"]
        loaded.step()
        schedule.step()
        rates[late][name] = [round(first, 4), round(loaded.param_groups[0]["lr"], 4)]
print("expected:", rates[False])
print("seen:", rates[True])
sys.exit(rates[True] != rates[False])
