"""Combinations of techniques: a pairwise covering array of the values that a framework declares, trained and compared.

The array comes from `allpairspy` (Czerwonka, "Pairwise testing in the real world", PNSQC 2006). A row gives each factor
a value; `Row.recipe` and `Row.model` turn it into a training run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from allpairspy import AllPairs

from conformance.checks.evidence import Verdict
from conformance.checks.failing_layer import naming_the_layer
from conformance.checks.subject import Subject, supports
from conformance.oracle.errormodel import flat
from fixtures.data import exact_batch
from fixtures.model import Activation, BatchNorm, Dense, Dropout, Head, Heads, Layer, Model, Residual, Window
from fixtures.recipe import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    MASTERED,
    SGD,
    Adam,
    AdamW,
    DynamicScaling,
    Offload,
    Ranks,
    Recipe,
    Recompute,
    StaticScaling,
    Steps,
)
from frameworks.contract import Framework, Trainer, Update, needs

UPDATES = 4
WIDTH = 8
FACTORS: dict[str, dict[str, Any]] = {
    "precision": {precision.label: precision for precision in (FLOAT32, FLOAT16, BFLOAT16, *MASTERED)},
    "optimizer": {
        "sgd": SGD(2.0**-4),
        "momentum": SGD(2.0**-5, momentum=0.5),
        "adam": Adam(2.0**-3, epsilon=1.0),
        "adamw": AdamW(2.0**-3, epsilon=1.0, weight_decay=0.25),
    },
    "scaling": {"unscaled": None, "static": StaticScaling(16.0), "dynamic": DynamicScaling(initial=16.0, interval=2)},
    "accumulation": {"whole": 1, "halves": 2},
    "clip": {"unclipped": None, "clipped": 0.5},
    "schedule": {"constant": None, "steps": Steps((1, 3), (1.0, 0.5, 0.25))},
}
"""Values of each recipe field by name, the plain one first. Adam's epsilon is 1 so that a norm affects its updates."""
RANKS: dict[str, Any] = {"alone": None, "replicated": Ranks(2), "full": Ranks(2, "full")}
"""Values of the field `ranks`, a factor for frameworks that declare ranks."""
OFFLOADS: dict[str, Any] = {
    "here": None,
    "activations-host": Offload(("activations",)),
    "activations-disk": Offload(("activations",), "disk"),
    "state-host": Offload(("parameters", "optimizer")),
    "state-disk": Offload(("parameters", "optimizer"), "disk"),
}
"""Values of the field `offload`, a factor for frameworks that declare an offload."""
_WHERE_DECLARED = ("ranks", "offload")
LAYERS = {"dropout": ("kept", "dropout"), "norm": ("plain", "norm")}
"""Layers of the model that are factors, with the names of both values, the plain one first."""


@dataclass(frozen=True)
class Row:
    """One combination of techniques.

    Attributes:
        values: name of the value by factor, in the order of the factors.
        recipe: the training recipe of the combination.
        dropout, norm: whether the model has dropout and batch norm.
    """

    values: tuple[tuple[str, str], ...]
    recipe: Recipe
    dropout: bool
    norm: bool

    @property
    def label(self) -> str:
        """The names of the values, joined to the id of a test."""
        return "-".join(name for _, name in self.values)

    def replace(self, **changes: Any) -> Row:
        """This row with some fields of its recipe changed."""
        return replace(self, recipe=self.recipe.replace(**changes))

    @cached_property
    def model(self) -> Model:
        """The model to judge; its dropout has only zeros as input, so masks make no difference."""
        return _model(self.dropout, self.norm, -1.0)

    @cached_property
    def masked(self) -> Model:
        """The same model with a nonzero branch, so that masks make a difference."""
        return _model(self.dropout, self.norm, 1.0)

    @property
    def windows(self) -> list[Window]:
        """One window of 16 samples for each update."""
        return [exact_batch(16, WIDTH, seed=i).into(self.recipe.accumulation) for i in range(UPDATES)]

    @property
    def rates(self) -> list[float]:
        """The learning rate of every update."""
        factors = Steps((), (1.0,)) if self.recipe.schedule is None else self.recipe.schedule
        return [self.recipe.optimizer.learning_rate * factors.factor(i) for i in range(UPDATES)]


def _model(dropout: bool, norm: bool, bias: float) -> Model:
    branch = Residual((Dense(WIDTH), Activation("relu"), Dropout(0.5)))
    layers: tuple[Layer, ...] = (
        Dense(WIDTH),
        *((BatchNorm(),) if norm else ()),
        Activation("tanh"),
        *((branch,) if dropout else ()),
        Dense(WIDTH),
        Activation("tanh"),
        Heads((Head("output", 4),)),
    )
    path = f"{layers.index(branch)}.body.0" if dropout else ""
    starts = ((f"{path}.weight", np.zeros((WIDTH, WIDTH))), (f"{path}.bias", np.full(WIDTH, bias))) if dropout else ()
    return Model("combined", layers, (WIDTH,), (("output", "squared_error"),), starts=starts)


def list_factors(framework: Framework) -> dict[str, dict[str, Any]]:
    """Return the factors, each with the values that the framework declares."""
    recomputed = {name: Recompute(2, variant=name) for name in framework.recompute_variants()}
    factors = {**FACTORS, "ranks": RANKS, "offload": OFFLOADS, "recompute": {"remembered": None, **recomputed}}
    offered = {
        factor: {name: value for name, value in values.items() if _is_offered(framework, factor, value)}
        for factor, values in factors.items()
    }
    return {factor: values for factor, values in offered.items() if factor not in _WHERE_DECLARED or len(values) > 1}


def _is_offered(framework: Framework, field: str, value: Any) -> bool:
    return supports(framework, *needs(replace(Recipe(), **{field: value})))


def rows(framework: Framework) -> tuple[Row, ...]:
    """Return a covering array of strength two over the values that the framework declares."""
    factors = list_factors(framework)
    names = {**{factor: list(values) for factor, values in factors.items()}, **LAYERS}
    # The generator fills what no pair asks for with the last value, which shall be the plain one.
    open_factors = {factor: values[::-1] for factor, values in names.items() if len(values) > 1}
    fixed = {factor: values[0] for factor, values in names.items() if len(values) == 1}
    array = AllPairs(list(open_factors.values()))
    return tuple(
        _row(factors, names, fixed | dict(zip(open_factors, combination, strict=True))) for combination in array
    )


def _row(factors: Mapping[str, Mapping[str, Any]], names: Mapping[str, Any], combination: Mapping[str, str]) -> Row:
    recipe = replace(Recipe(), **{factor: values[combination[factor]] for factor, values in factors.items()})
    values = tuple((factor, combination[factor]) for factor in names)
    return Row(values, recipe, combination["dropout"] == "dropout", combination["norm"] == "norm")


def list_covered_pairs(array: tuple[Row, ...]) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    """Return all pairs of values that some row covers."""
    return {pair for row in array for pair in combinations(row.values, 2)}


def list_pairs(framework: Framework) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    """Return all pairs of values of two factors that the framework declares."""
    names: dict[str, Any] = {**list_factors(framework), **LAYERS}
    return {((one, a), (other, b)) for one, other in combinations(names, 2) for a in names[one] for b in names[other]}


def compare(subject: Subject, verdict: Verdict, row: Row, folder: Path | None = None) -> None:
    """Compare losses, rates, skips, the first norm and the final parameters of a row with the oracle's.

    Args:
        folder: the run is saved here halfway, and a new run continues it; None for one uninterrupted run.
    """
    trainer = subject.trainer(row.model, row.recipe)
    updates: list[Update] = []
    constants = {name: value for name, value in trainer.parameters().items() if name in row.recipe.frozen}
    for index, window in enumerate(row.windows):
        if folder is not None and index == len(row.windows) // 2:
            trainer = _resume(subject, row, trainer, folder)
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


def _resume(subject: Subject, row: Row, trainer: Trainer, folder: Path) -> Trainer:
    trainer.save(folder)
    resumed = subject.trainer(row.model, row.recipe)
    resumed.restore(folder)
    return resumed
