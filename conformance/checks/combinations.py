"""Trains a combination of techniques and compares it with the oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from conformance.checks.covering_array import Row
from conformance.checks.evidence import Verdict
from conformance.checks.failing_layer import naming_the_layer
from conformance.checks.subject import Subject
from conformance.oracle.errormodel import flat
from frameworks.contract import Trainer, Update


def compare(subject: Subject, verdict: Verdict, row: Row, folder: Path | None = None) -> None:
    """Compares losses, rates, skips, the first norm and the final parameters of a row with the oracle's.

    Args:
        folder: where the run is saved halfway, for a new run that goes on; None for one run.
    """
    trainer = subject.trainer(row.model, row.recipe)
    updates: list[Update] = []
    constants = {name: value for name, value in trainer.parameters().items() if name in row.recipe.frozen}
    for place, window in enumerate(row.windows):
        if folder is not None and place == len(row.windows) // 2:
            trainer = _resumed(subject, row, trainer, folder)
        updates.append(trainer.update(window))
    verdict.equal([update.skipped for update in updates], [False] * len(updates), "skipped updates", "skipped")
    ends = trainer.parameters()
    verdict.same_state({name: ends[name] for name in constants}, constants, "parameters not trained", "frozen-moved")
    rates = [update.learning_rate for update in updates]
    verdict.equal(rates, row.rates, "learning rate of every update", "rate-differs")
    envelope = subject.envelope(row.model, row.recipe.replace(recompute=None), row.windows)
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


def _resumed(subject: Subject, row: Row, trainer: Trainer, folder: Path) -> Trainer:
    trainer.save(folder)
    resumed = subject.trainer(row.model, row.recipe)
    resumed.restore(folder)
    return resumed
