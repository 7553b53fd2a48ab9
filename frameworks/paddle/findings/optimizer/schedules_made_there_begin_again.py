"""CosineAnnealingDecay and LinearLR made with last_epoch=3 have other rates than those that made four steps."""

import sys

from paddle.optimizer import lr

MAKES = [
    lambda epoch: lr.CosineAnnealingDecay(1.0, 10, last_epoch=epoch),
    lambda epoch: lr.LinearLR(1.0, 4, start_factor=0.25, last_epoch=epoch),
]
expected, seen = [], []
for make in MAKES:
    schedule = make(-1)
    for _ in range(4):
        schedule.step()
    expected.append(round(schedule.get_lr(), 4))
    seen.append(round(make(3).get_lr(), 4))  # epochs 0 to 3 are over
print("expected:", expected)
print("seen:", seen)
sys.exit(seen != expected)
