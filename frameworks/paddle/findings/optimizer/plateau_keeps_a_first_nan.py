"""ReduceOnPlateau takes a first metric of NaN for the best one, so the rate falls while later metrics improve."""

import sys

from paddle.optimizer.lr import ReduceOnPlateau

schedule = ReduceOnPlateau(1.0, factor=0.5, patience=1)
for metric in (float("nan"), 4.0, 3.0, 2.0, 1.0):
    schedule.step(metric)
print("expected:", expected := "rate 1.0")
print("seen:    ", seen := f"rate {schedule()}")
sys.exit(int(seen != expected))
