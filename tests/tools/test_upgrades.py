"""Which records of other versions are compared with which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from results.compare.changes import ChangeKind
from results.compare.comparison import Comparison
from results.record.files import RecordError
from results.record.folders import listed
from results.record.reading import Record, Series
from results.show.differences import title
from tests.support.small_record import BASE
from tools.docs.upgrades import UPGRADES, pairs, upgrades

SUITE = {
    ChangeKind.REMOVED,
    ChangeKind.CONTRADICTED,
    ChangeKind.LEVEL_LOWERED,
    ChangeKind.FEWER_CHECKS,
    ChangeKind.TRACE_MISSING,
    ChangeKind.BOUND_WIDER,
    ChangeKind.ORACLE_CHANGED,
}
"""What is worse without a framework having done it."""


def record(version: str, framework: str = "torch", mode: str = "eager") -> Record:
    """A record of a version."""
    variant = replace(BASE.variant, framework_version=version)
    return replace(BASE, series=Series(framework, "cpu", "cpu", mode), variant=variant)


def paired(baseline: str, *others: str) -> list[tuple[str, str]]:
    """Versions of the pairs of records of these versions."""
    made = pairs([record(version) for version in others], [record(baseline)])
    return [(old.variant.framework_version, new.variant.framework_version) for old, new in made]


def test_versions_are_compared_in_steps_the_older_one_first() -> None:
    made = paired("2.13.0+cpu", "2.15.0+cu132", "2.6.0+cu124", "2.9.0")
    assert made == [("2.6.0+cu124", "2.9.0"), ("2.9.0", "2.13.0+cpu"), ("2.13.0+cpu", "2.15.0+cu132")]


def test_what_a_companion_did_is_told_apart_from_what_the_framework_did() -> None:
    new, old = "2.21.0+keras.3.15.1", "2.20.0+keras.3.15.1"
    assert paired(new, old, "2.21.0+keras.3.8.0") == [(old, new), ("2.21.0+keras.3.8.0", new)]
    assert paired(new, old, "2.20.0+keras.3.8.0") == [("2.20.0+keras.3.8.0", old), (old, new)]


def test_where_everything_differs_the_baseline_is_the_partner() -> None:
    pinned = "0.10.2+flax.0.12.8.optax.0.2.8"
    older = ["0.6.2+flax.0.10.7.optax.0.2.5", "0.9.2+flax.0.12.6.optax.0.2.8"]
    assert paired(pinned, *older) == [(each, pinned) for each in older]


def test_versions_are_numbers_and_not_words() -> None:
    assert paired("2.10.0", "2.9.0") == [("2.9.0", "2.10.0")]


def test_each_series_has_its_own_pairs() -> None:
    made = pairs([record("1.0", mode="b"), record("3.0", mode="a")], [record("2.0", mode=mode) for mode in "ab"])
    told = [(old.series.mode, old.variant.framework_version, new.variant.framework_version) for old, new in made]
    assert told == [("a", "2.0", "3.0"), ("b", "1.0", "2.0")]


def test_a_record_without_a_baseline_is_refused_in_one_line() -> None:
    with pytest.raises(RecordError, match="holds a record of torch eager cpu; accept a baseline"):
        list(pairs([record("1.0")], []))


def test_every_committed_record_is_compared() -> None:
    made = upgrades()
    assert len(made) == len(listed(UPGRADES))
    assert all(not pair.refusals and pair.judged for pair in made)


@pytest.mark.parametrize("pair", upgrades(), ids=title)
def test_a_recorded_upgrade_outlives_the_suite(pair: Comparison) -> None:
    """Nearly all tests that both records have are compared, and only what the framework did is worse."""
    common = {verdict.test for verdict in pair.old.verdicts} & {verdict.test for verdict in pair.new.verdicts}
    assert pair.compared > 0.95 * len(common) > 600
    assert all(change.detail for change in pair.changes if change.kind is ChangeKind.NOT_COMPARABLE)
    assert not {change.kind for change in pair.changes} & SUITE
