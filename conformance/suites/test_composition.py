"""Techniques in combination: pairs of techniques match the oracle, and adapters' declarations are true."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conformance.judging import probing, programs
from conformance.judging.covering_array import Row, covered, rows, wanted
from conformance.judging.kit import Subject, Verdict, clause, naming_the_layer
from conformance.oracle.errormodel import flat
from conformance.spec.findings import Workaround
from frameworks.contract import Capability


@clause("composition.pairs")
def test_a_combination_trains_as_the_oracle_does(subject: Subject, verdict: Verdict, row: Row) -> None:
    trainer = subject.trainer(row.model, row.recipe)
    updates = [trainer.update(window) for window in row.windows]
    verdict.equal([update.skipped for update in updates], [False] * len(updates), "skipped updates", "skipped")
    rates = [update.learning_rate for update in updates]
    verdict.equal(rates, row.rates, "learning rate of every update", "rate-differs")
    envelope = subject.envelope(row.model, row.recipe.but(recompute=None), row.windows)
    losses = np.array([update.loss for update in updates])
    verdict.trace("loss", loss=losses, exact=envelope.exact.losses, spread=envelope.loss_spread)
    with naming_the_layer(subject, row.model, row.recipe, row.windows[0][0]):
        worst, bound, update = envelope.worst_loss(losses)
        verdict.within(worst, bound, f"distance of the loss from float64's at update {update}", "loss-beyond-envelope")
        distance, bound = envelope.parameters(flat(trainer.parameters()))
        verdict.within(distance, bound, "relative distance of the final parameters", "parameters-beyond-envelope")
        if (norm := updates[0].gradient_norm) is not None:
            exact = float(np.linalg.norm(envelope.exact.gradient))
            _, bound = envelope.gradient(envelope.exact.gradient)
            share = abs(norm - exact) / exact
            verdict.within(share, bound, "relative distance of the first norm", "norm-beyond-envelope")


@clause("composition.pairs")
def test_masks_act_in_a_combination(subject: Subject, verdict: Verdict, dropping_row: Row) -> None:
    row = dropping_row
    still = row.recipe.but(optimizer=replace(row.recipe.optimizer, learning_rate=0.0))
    trainer, window = subject.trainer(row.masked, still), row.windows[0]
    first, second = (trainer.update(window).loss for _ in range(2))
    verdict.holds(first != second, "two masks give two losses of one window", second, f"not {first}", "mask-inert")


@clause("composition.coverage")
def test_the_pairs_that_the_rows_hold(subject: Subject, verdict: Verdict) -> None:
    due, found = wanted(subject.framework), covered(rows(subject.framework))
    verdict.observe("pairs", f"{len(due & found)} of {len(due)}")


@clause("composition.declarations-hold")
@pytest.mark.parametrize("capability", probing.OTHERS, ids=str)
def test_every_declaration_holds(subject: Subject, verdict: Verdict, capability: Capability) -> None:
    probing.compare(subject, verdict, capability)


@clause("composition.plain-way")
def test_the_plain_way_works(verdict: Verdict, workaround: Workaround) -> None:
    assert workaround.finding.program is not None
    shown = programs.run(workaround.finding.program)
    verdict.observe(workaround.finding.id, {"instead": workaround.does, "kind": workaround.kind, "seen": shown.seen})
    verdict.holds(not shown.there, workaround.finding.id, shown.seen, shown.expected, "plain-way-fails")
