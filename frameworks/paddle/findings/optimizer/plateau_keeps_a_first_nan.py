"""ReduceOnPlateau whose metric is NaN at first and improves each time afterwards."""

import sys

from paddle.optimizer.lr import ReduceOnPlateau

schedule = ReduceOnPlateau(1.0, factor=0.5, patience=1)
for metric in (float("nan"), 4.0, 3.0, 2.0, 1.0):
    schedule.step(metric)
print("expected:", expected := "rate 1.0")
print("seen:    ", seen := f"rate {schedule()}")
sys.exit(int(seen != expected))
