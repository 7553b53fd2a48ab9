"""Four schedules that are made after the optimizer was loaded, and loaded themselves: rates of the next two steps."""

import sys

from torch import ones
from torch.optim import SGD, lr_scheduler

KINDS = {
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.8**step),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=20),
    "LinearLR": lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(optimizer, [KINDS["LinearLR"](optimizer)] * 2, [9]),
}


def rates(kind: str, late: bool) -> list[float]:
    first, second = (SGD([ones(1, requires_grad=True)], lr=1.0) for _ in range(2))
    (schedule := KINDS[kind](first)).optimizer.step()
    schedule.step()
    early = None if late else KINDS[kind](second)
    second.load_state_dict(first.state_dict())
    (loaded := early or KINDS[kind](second)).load_state_dict(schedule.state_dict())
    rate = second.param_groups[0]["lr"]
    second.step(), loaded.step()
    return [round(rate, 4), round(second.param_groups[0]["lr"], 4)]


wanted, seen = ({kind: rates(kind, late) for kind in KINDS} for late in (False, True))
print("expected:", wanted)
print("seen:", seen)
sys.exit(seen != wanted)
