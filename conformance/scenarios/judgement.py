"""Results of a scenario's sides for a record: verdicts, measurements and traces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from conformance.checks.evidence import Abstention, Violation
from conformance.checks.outcome import conclude
from conformance.scenarios.scenario import REDUCED, Scenario, Setting, Side
from conformance.scenarios.training import SideResult
from frameworks.contract import Framework
from results.record.model import CheckResult, Measurement, TestVerdict, Trace

SHARE = 10
"""The initial and final loss are taken over one in so many updates, at the beginning and at the end."""

_SIGNATURES = {"loss": "loss-did-not-fall", "accuracy": "learned-nothing", "squared error": "learned-nothing"}

RECORDED = {"method": "recorded, not judged"}
CUT = {"method": "recorded, not judged: the run was too short to learn"}


def verdicts(
    framework: Framework, scenario: Scenario, setting: Setting, results: Sequence[SideResult], rounds: int, repro: str
) -> tuple[TestVerdict, ...]:
    """One verdict for each side: a refusal with its reason, or whether it learned and met its promises."""
    cut, judged = rounds < scenario.learns_in, []
    for one in results:
        same_bits = _promises_bits(framework, one.side)
        checks = tuple(_checks(scenario, setting, one, cut, same_bits))
        failed = [check for check in checks if not check.passed]
        error: Exception | None = one.error
        if error is None and failed:
            said = "; ".join(f"{check.what}: {check.measured} where {check.expected} was expected" for check in failed)
            error = Violation(_SIGNATURES.get(failed[0].what, "parameters-differ"), said)
        elif error is None and cut and not same_bits:
            error = Abstention(f"{rounds} rounds are too few to learn in; {scenario.learns_in} are judged")
        result = conclude(framework, error, ())
        verdict = TestVerdict(
            test=f"{scenario.clause}/{one.side.label}",
            clause=scenario.clause,
            outcome=result.outcome,
            signature=result.signature,
            message=result.message,
            checks=checks,
            reason=result.reason,
            link=result.link,
            setup_hash=scenario.fingerprint(one.side, setting, rounds),
            seed=one.side.recipe.seed,
            repro=repro,
            duration_s=one.lasted,
        )
        judged.append(verdict)
    return tuple(judged)


def _promises_bits(framework: Framework, side: Side) -> bool:
    """A compiler may round another program differently, but offload does not change the program."""
    return side.equal and (side.recipe.offload is not None or not framework.conventions().compiled)


def _checks(
    scenario: Scenario, setting: Setting, result: SideResult, cut: bool, same_bits: bool
) -> Iterator[CheckResult]:
    if result.losses:
        part = max(1, len(result.losses) // SHARE)
        first, last = median(result.losses[:part]), median(result.losses[-part:])
        derivation = CUT if cut else {"method": f"median of the first and of the last {part} updates"}
        yield CheckResult("loss", last, first, f"below {first:.4g}", cut or last < first, derivation)
    if result.losses and result.side.recipe.scaling is not None:
        skipped = sum(result.skipped)
        yield CheckResult("skipped updates", skipped, None, f"of {len(result.skipped)}", True, RECORDED)
    if result.quality is not None:
        quality = scenario.quality
        constant = quality.constant(setting.test)
        better = result.quality > constant if quality.rising else result.quality < constant
        expected = f"{'above' if quality.rising else 'below'} {constant:.4g}"
        derivation = CUT if cut else {"method": "the best answer that ignores the inputs"}
        yield CheckResult(quality.label, result.quality, constant, expected, cut or better, derivation)
    beside = result.side.beside or scenario.sides[0].label
    if result.apart is not None:
        share = {**RECORDED, "unit": f"the 2-norm of {beside}'s outputs"}
        yield CheckResult(f"distance from {beside}'s outputs", result.apart, None, None, True, share)
    if result.distance is not None:
        what = f"distance from {beside}'s parameters"
        if same_bits:
            promised = {"method": "the same bits are promised"}
            yield CheckResult(what, result.distance, 0.0, "0", result.distance == 0.0, promised)
        else:
            share = {**RECORDED, "unit": f"the way that {beside}'s went"}
            yield CheckResult(what, result.distance, None, None, True, share)


def measurements(scenario: Scenario, results: Sequence[SideResult]) -> tuple[Measurement, ...]:
    """Seconds of each round next to the first side's of the same round, and counted quantities, with one case for each
    side."""
    costs: list[Measurement] = []
    for one in results:
        for name, count in one.counts.items():
            unit = "1" if name == REDUCED else "B"
            costs.append(Measurement(scenario.clause, name, one.side.label, unit, (float(count),)))
        if one.error is None and one.control:
            pairs = [pair for pair in zip(one.seconds, one.control, strict=True) if all(map(math.isfinite, pair))]
            if pairs:
                times, control = zip(*pairs, strict=True)
                costs.append(Measurement(scenario.clause, "seconds a round", one.side.label, "s", times, control))
    return tuple(costs)


def traces(scenario: Scenario, results: Sequence[SideResult]) -> tuple[Trace, ...]:
    """Loss and, if any, loss scale of every update, with one case for each side."""
    result = []
    for one in results:
        if one.losses:
            scales = {} if one.side.recipe.scaling is None else {"scale": tuple(one.scales)}
            result.append(Trace(scenario.name, one.side.label, {"loss": tuple(one.losses), **scales}))
    return tuple(result)
