"""CosineAnnealingDecay and LinearLR are made with last_epoch: do they give the rates of the schedule that went on?"""

import sys

from paddle.optimizer import lr

MAKES = [
    lambda last: lr.CosineAnnealingDecay(1.0, 10, last_epoch=last),
    lambda last: lr.LinearLR(1.0, 4, start_factor=0.25, last_epoch=last),
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
