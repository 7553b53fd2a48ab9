"""Four schedules that are made after the optimizer was loaded, and loaded themselves: rates of the next two steps."""

import sys

from torch import ones, optim
from torch.optim.lr_scheduler import LambdaLR, LinearLR, OneCycleLR, SequentialLR

KINDS = {
    "LambdaLR": lambda of: LambdaLR(of, lambda step: 0.8**step),
    "OneCycleLR": lambda of: OneCycleLR(of, 1.0, total_steps=20),
    "LinearLR": lambda of: LinearLR(of, 0.1, total_iters=10),
    "SequentialLR": lambda of: SequentialLR(of, [LinearLR(of, 0.1, total_iters=10), LinearLR(of, 0.5)], [9]),
}


def rates(kind: str, late: bool) -> list[float]:
    first, second = (optim.SGD([ones(1, requires_grad=True)], lr=1.0) for _ in range(2))
    schedule, loaded = KINDS[kind](first), None if late else KINDS[kind](second)
    first.step(), schedule.step()
    second.load_state_dict(first.state_dict())
    (loaded := loaded or KINDS[kind](second)).load_state_dict(schedule.state_dict())
    rate = second.param_groups[0]["lr"]
    second.step(), loaded.step()
    return [round(rate, 4), round(second.param_groups[0]["lr"], 4)]


wanted, seen = ({kind: rates(kind, late) for kind in KINDS} for late in (False, True))
print("expected:", wanted)
print("seen:", seen)
sys.exit(seen != wanted)
