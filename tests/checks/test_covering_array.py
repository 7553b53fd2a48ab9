"""The covering array holds every pair of what is declared, and its dropout never changes a run."""

import numpy as np
import pytest

from conformance.checks.combinations import FACTORS, covered, declared, rows, wanted
from frameworks.contract import Capability, Declaration, Framework
from frameworks.reference import ReferenceFramework


class Plain(ReferenceFramework):
    """Declares neither low precision nor scaling, accumulation, recomputation or clipping."""

    def declares(self, capability: Capability) -> Declaration:
        bare = capability in (Capability.SCHEDULE, Capability.FEED)
        return super().declares(capability) if bare else Declaration(False, "plain training only")

    def recompute_variants(self) -> tuple[str, ...]:
        return ()


@pytest.mark.parametrize("framework", [ReferenceFramework(), Plain()], ids=["everything", "little"])
def test_rows_cover_every_pair_of_declared_values(framework: Framework) -> None:
    due = wanted(framework)
    assert due
    assert due == covered(rows(framework))
    assert rows(framework) == rows(framework)
    labels = [row.label for row in rows(framework)]
    assert len(set(labels)) == len(labels)


def test_declared_leaves_out_what_is_refused() -> None:
    offered = declared(Plain())
    assert list(offered["precision"]) == ["O0"]
    assert list(offered["scaling"]) == ["unscaled"]
    assert list(offered["schedule"]) == ["constant", "steps"]
    assert {name for row in rows(Plain()) for _, name in row.values} >= {*FACTORS["optimizer"], "dropout", "norm"}
    assert all(row.recipe.accumulation == 1 and row.recipe.recompute is None for row in rows(Plain()))


def test_no_mask_changes_what_is_judged() -> None:
    row = next(row for row in rows(ReferenceFramework()) if row.dropout)
    weights = row.model.weights(0)
    ends = []
    for seed in (0, 1):
        trainer = ReferenceFramework().trainer(row.model, row.recipe.replace(seed=seed), weights)
        ends.append([*(trainer.update(window).loss for window in row.windows), trainer.parameters()])
    np.testing.assert_equal(ends[0], ends[1])
