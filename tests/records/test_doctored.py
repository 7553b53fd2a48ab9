"""Every doctored record lands in its own class, and in no other."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.cli.records import compare as command
from results.compare.changes import ChangeKind
from results.compare.comparison import Comparison, compare
from results.compare.numbers import Movement
from results.compare.pairing import Comparisons, FailOn
from results.record.reading import Curves, Outcome, write
from results.show.differences import document, headline, markdown, to_text
from tests.support.doctored import (
    baseline,
    with_bytes,
    with_curves,
    with_errors,
    with_losses,
    with_tensors,
    with_variant,
    with_verdicts,
)


def kinds(comparison: Comparison) -> set[ChangeKind]:
    return {change.kind for change in comparison.changes}


def movements(comparison: Comparison) -> dict[str, Movement]:
    return {one.test.partition("/")[2]: one.movement for one in comparison.numbers}


def said(comparison: Comparison) -> str:
    """What the three forms have in common: the text on one line."""
    return " ".join(to_text(Comparisons((comparison,))).split())


@pytest.fixture(scope="module")
def parity() -> str:
    """A test that passes in float32 and has a trajectory."""
    record = baseline()
    result = (
        v.test for v in record.verdicts if "test_float32_sgd_parity[digits-mlp]" in v.test and v.outcome is Outcome.PASS
    )
    return next(result)


def test_the_identical_record_is_identical() -> None:
    result = compare(baseline(), baseline())
    assert result.identical
    assert set(movements(result).values()) == {Movement.IDENTICAL}
    assert len(result.numbers) > 60
    assert ": identical (" in headline(result)
    assert said(result).endswith("nothing is worse: identical")
    assert "**Conformance: nothing is worse: identical.**" in markdown(Comparisons((result,)))
    assert document(Comparisons((result,)))["pairs"][0]["identical"] is True


def test_losses_a_thousandth_off_drift_where_rounding_does_not_explain_it() -> None:
    old = baseline()
    result = compare(old, with_losses(old, lambda loss: loss * 1.001))
    assert kinds(result) == {ChangeKind.DRIFT}
    far = {
        each.case
        for each in old.traces
        if each.key == "loss"
        and any(
            0.001 * abs(a) > bound < math.inf
            for a, bound in zip(each.curves["loss"], each.curves["bound"], strict=True)
        )
    }
    assert len(far) > 20
    assert {case for case, movement in movements(result).items() if movement is Movement.DRIFT} == far
    assert Movement.ROUNDING in movements(result).values(), "in bfloat16 a thousandth is rounding"
    assert (result.status, result.drifted) == (0, len(far))
    assert all("at update 0 is the first that moved" in change.detail for change in result.changes)
    assert f"{len(far)} tests drifted" in said(result)


def test_an_error_next_to_its_bound_drifts(parity: str) -> None:
    old, new = (with_errors(baseline(), parity, share) for share in (0.01, 0.99))
    result = compare(old, new)
    assert [(c.kind, c.subject) for c in result.changes] == [(ChangeKind.DRIFT, parity)]
    assert "99 times as large, 0.99 of its bound" in result.changes[0].detail
    counted = document(Comparisons((result,)))["pairs"][0]["numbers"]["counts"]
    assert counted == {"identical": len(result.numbers) - 1, "drift": 1}
    assert "1 drift" in headline(result)
    assert not compare(new, old).changes, "smaller errors are rounding"


@pytest.mark.parametrize(
    ("before", "after", "drifts"),
    [
        (0.01, 0.49, False),
        (0.01, 0.51, True),
        (0.3, 0.6, False),
        (0.2, 0.61, True),
        (0.0, 0.6, True),
        (0.6, 0.6, False),
    ],
)
def test_an_error_drifts_if_it_tripled_and_passes_half_of_its_bound(
    before: float, after: float, drifts: bool, parity: str
) -> None:
    result = compare(*(with_errors(baseline(), parity, share) for share in (before, after)))
    assert kinds(result) == ({ChangeKind.DRIFT} if drifts else set())
    assert (movements(result)[parity.partition("/")[2]] is Movement.IDENTICAL) is (before == after)


def test_another_flag_is_said_and_nothing_else() -> None:
    old = baseline()
    result = compare(old, with_variant(old, environment={"deterministic": "True", "threads": "2"}))
    assert (result.changes, result.status, result.identical) == ((), 0, False)
    assert "deterministic: False → True: other kernels may run, which round differently" in said(result)
    assert "threads: 1 → 2: sums may round differently" in said(result)
    assert "no change; numbers:" in headline(result)


def test_another_companion_is_said_with_the_command_that_crosses_it() -> None:
    old = baseline()
    result = compare(old, with_variant(old, packages={"numpy": "2.5.0", "protobuf": "7.0"}))
    assert (result.changes, result.status, result.identical) == ((), 0, False)
    assert "companion packages, which may be the cause: numpy: 2.4.6 → 2.5.0" in said(result)
    assert "TORCH_VERSION=2.13.0 NUMPY_VERSION=2.4.6 tox -e torch" in said(result)
    assert "1 other package differs" in said(result)
    assert "protobuf: 6.33.1 → 7.0" in markdown(Comparisons((result,)))


def test_last_bits_are_rounding_and_the_first_tensor_is_named(parity: str) -> None:
    old, case = baseline(), parity.partition("/")[2]
    moved = with_losses(old, lambda loss: float(np.nextafter(np.float32(loss), np.float32(9.0))))
    new = with_tensors(moved, case, {"output/2.body.1": 3, "gradient/3": 1})
    result = compare(old, new)
    assert (result.changes, result.status, result.identical) == ((), 0, False)
    assert movements(result)[case] is Movement.ROUNDING
    assert Movement.DRIFT not in movements(result).values()
    (entry,) = (
        one for one in document(Comparisons((result,)))["pairs"][0]["numbers"]["tests"] if one["test"] == parity
    )
    assert entry["tensor"] == "output/2.body.1 (bfloat16), by 3 units in the last place of its sampled values"
    assert entry["movement"] == "rounding"
    text = markdown(Comparisons((result,)))
    assert "output/2.body.1 (bfloat16), by 3 units" in text[text.index("<details><summary>Numbers: ") :]
    assert "body" not in said(result), "rounding is counted, not listed"


def test_a_drift_and_a_failure_name_the_first_tensor_that_differs(parity: str) -> None:
    old, case = with_errors(baseline(), parity, 0.01), parity.partition("/")[2]
    new = with_tensors(with_errors(old, parity, 0.99), case, {"output/3": 1})
    message = "first tensor that differs: output/3 (bfloat16), by 1 unit in the last place"
    (change,) = compare(old, new).changes
    assert change.kind is ChangeKind.DRIFT
    assert message in change.detail
    failing = with_verdicts(new, lambda v: replace(v, outcome=Outcome.FAIL) if v.test == parity else v)
    (failure,) = compare(old, failing).changes
    assert failure.kind is ChangeKind.NEWLY_FAILING
    assert message in failure.detail
    assert movements(compare(old, failing))[case] is Movement.FAILING


def test_without_bounds_of_losses_the_spread_serves() -> None:
    old = baseline()
    old = with_curves(old, lambda curves: {name: points for name, points in curves.items() if name != "bound"})
    assert kinds(compare(old, with_losses(old, lambda loss: loss * 1.001))) == {ChangeKind.DRIFT}
    assert not compare(old, with_losses(old, lambda loss: loss * (1.0 + 1e-9))).changes


def test_where_the_oracle_is_another_one_errors_are_compared() -> None:
    old = baseline()

    def moved(by: float, *names: str) -> Callable[[Curves], Curves]:
        return lambda curves: {**curves, **{name: tuple(x + by for x in curves[name]) for name in names}}

    shifted = with_curves(old, moved(1.0, "loss", "exact"))
    result = compare(old, shifted)
    assert Movement.DRIFT not in movements(result).values()
    assert (kinds(result), result.status) == ({ChangeKind.ORACLE_CHANGED}, 1)
    drifted = compare(old, with_curves(old, moved(1.0, "exact")))
    assert not [one for one in drifted.numbers if one.movement is Movement.DRIFT], "the losses are the very same"
    far = compare(old, with_curves(shifted, moved(0.5, "loss")))
    assert kinds(far) == {ChangeKind.DRIFT, ChangeKind.ORACLE_CHANGED}
    details = [change.detail for change in far.changes if change.kind is ChangeKind.DRIFT]
    assert all("the oracle itself differs, so errors are compared" in detail for detail in details)


@pytest.mark.parametrize(
    ("fail_on", "drift", "worse", "refused"), [("worse", 0, 1, 2), ("drift", 1, 1, 2), ("never", 0, 0, 2)]
)
def test_what_a_comparison_fails_on_can_be_chosen(
    fail_on: FailOn, drift: int, worse: int, refused: int, parity: str, tmp_path: Path
) -> None:
    old, new = (with_errors(baseline(), parity, share) for share in (0.01, 0.99))
    grown, other = with_bytes(old, lambda size: size + 1), replace(old, seed=1)
    for record, status in ((new, drift), (grown, worse), (other, refused), (old, 0)):
        assert Comparisons((compare(old, record),)).exit_status(fail_on) == status
    for name, record in (("old", old), ("new", new)):
        write(tmp_path / f"{name}.json", record)
    words = [f"{tmp_path}/old.json", f"{tmp_path}/new.json", f"--fail-on={fail_on}", "--format=json"]
    ended = CliRunner().invoke(command, words, standalone_mode=False)
    assert ended.return_value == drift
    assert json.loads(ended.output)["verdict"] == "nothing is worse, 1 test drifted"
