"""Shows of every fault that a plain run differs from the reference's: one line a fault."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from frameworks.contract import Framework
from frameworks.reference.framework import ReferenceFramework
from tests.inventions.round_2026_11_22_e import faults_e_1 as one
from tests.inventions.round_2026_11_22_e import faults_e_2 as two
from tests.inventions.round_2026_11_22_e import faults_e_3 as three
from tests.inventions.round_2026_11_22_e import runs_e as runs

Run = Callable[[Framework], Any]

SHOWN: dict[Any, Run] = {
    one.EmptyLossFromLowSum: runs.empty_loss,
    one.LastClassTakenForPadding: runs.masked_labels,
    one.GeluSlopeSaturates: runs.gelu_slope,
    one.NegativeVariance: runs.constant_rows,
    one.ValuesOfOddLengths: runs.odd_length,
    one.StrideLeavesRemainder: runs.strided,
    one.FirstRowIsPadding: runs.first_row,
    one.LongSoftmaxIsLow: runs.long_softmax,
    two.NormOfScaledGradients: runs.large_clipped,
    two.NormOfFirstFormat: runs.mixed_clipped,
    two.FiniteBySum: runs.large_sum,
    two.DecayWithoutSchedule: runs.decayed,
    two.ScalerHidesAverage: runs.averaged_scaled,
    two.AverageOncePerOptimizer: runs.two_averaged,
    two.SkipUsesUpTheCopy: runs.skipped_first,
    two.Float32AverageOfFloat64: runs.wide_average,
    two.HandUnscalesFirstOptimizer: runs.by_hand,
    two.UnscaleFlushesSubnormals: runs.subnormal,
    two.CapKeepsCounting: runs.at_the_cap,
    two.EvaluationClearsLosses: runs.evaluated_inside,
    three.BfloatLoadsNoMoments: runs.low_moments,
    three.SaveNotesLaterCounters: runs.late_counters,
    three.MomentsByNameOrder: runs.deep_moments,
    three.LoadKeepsCachedWeights: runs.cached_weights,
    three.ReplayRepeatsMasks: runs.replayed,
    three.HalfCountInStatistics: runs.many_values,
    three.LoadKeepsOpenWindow: runs.loaded_over_window,
    three.RunsShareOneStream: runs.second_run,
    three.RunsShareStatistics: runs.second_statistics,
    three.ErrorLeavesScopeOpen: runs.raised,
}


def compared(fault: Any) -> tuple[Any, Any]:
    """What the plain run gives on the reference and on the faulty framework."""
    return SHOWN[fault](ReferenceFramework("cpu")), SHOWN[fault](fault("cpu"))


def text(result: Any) -> str:
    """A result with every bit of its arrays."""
    if isinstance(result, dict):
        return str({name: text(value) for name, value in result.items()})
    if isinstance(result, list | tuple):
        return str([text(value) for value in result])
    return f"{result.dtype} {result.tolist()}" if isinstance(result, np.ndarray) else repr(result)


def main() -> int:
    """One line a fault; 1 if one of them shows no difference."""
    same = []
    for fault in SHOWN:
        right, wrong = (text(result) for result in compared(fault))
        differs = right != wrong
        print(f"{fault.__name__:28} {fault.kind:9} {fault.clause:44} {'differs' if differs else 'NO DIFFERENCE'}")
        same += [] if differs else [fault.__name__]
    print(f"{len(SHOWN)} faults, {len(same)} without a difference")
    return int(bool(same))


if __name__ == "__main__":
    sys.exit(main())
