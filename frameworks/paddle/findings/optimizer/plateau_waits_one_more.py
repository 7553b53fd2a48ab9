"""ReduceOnPlateau, documented to lower the rate after `patience` epochs without descent, does so one epoch later."""

import sys

from paddle.optimizer.lr import ReduceOnPlateau

schedule = ReduceOnPlateau(1.0, factor=0.5, patience=2)
rates = []
for _ in range(4):
    schedule.step(1.0)
    rates.append(schedule())
print("expected:", expected := [1.0, 1.0, 0.5, 0.5])
print("seen:    ", rates)
sys.exit(int(rates != expected))
