"""CosineAnnealingWarmRestarts saves neither its place in a cycle nor the cycle's length: loaded, it has other rates."""

import sys

from paddle.optimizer.lr import CosineAnnealingWarmRestarts


def rates(schedule: CosineAnnealingWarmRestarts, count: int) -> list[float]:
    seen = []
    for _ in range(count):
        seen.append(round(schedule(), 4))
        schedule.step()
    return seen


saved, resumed = (CosineAnnealingWarmRestarts(1.0, T_0=3) for _ in range(2))
rates(saved, 4)
resumed.set_state_dict(saved.state_dict())
print("expected:", expected := rates(saved, 4))
print("seen:    ", seen := rates(resumed, 4))
sys.exit(0 if seen == expected else 1)
