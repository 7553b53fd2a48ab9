"""Optimizers: agreement of the implementations of one rule, and the optimizers' options."""

from dataclasses import replace

import pytest

from conformance.checks.api import Subject, Verdict, clause, need
from conformance.techniques.optimizers import judge_updates
from fixtures.models import two_heads, vectors
from fixtures.optimizers import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from fixtures.recipe import FLOAT32, PURE_LOW, Implementation, Precision, Recipe, Steps
from frameworks.contract import Capability

SIZES = (1, 15, 16, 17, 31, 32, 33, 64, 1000)
"""Numbers of elements below, at and above the widths of vector registers."""
RATE = 2.0**-5
ADAM = Adam(RATE, beta1=0.5, beta2=0.75, epsilon=2.0**-10)
ADAMW = AdamW(RATE, beta1=0.5, beta2=0.75, epsilon=2.0**-10, weight_decay=2.0**-2)
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(RATE),
    "momentum": SGD(RATE, momentum=0.5),
    "adam": ADAM,
    "adamw": ADAMW,
    "adagrad": Adagrad(RATE, epsilon=2.0**-10, initial=0.25),
    "rmsprop": RMSprop(RATE, decay=0.75, epsilon=2.0**-10),
}
DECAY = 2.0**-2
OPTIONS: dict[str, Optimizer] = {
    "nesterov": SGD(RATE, 0.5, nesterov=True),
    "nesterov-decay": SGD(RATE, 0.5, nesterov=True, weight_decay=DECAY),
    "dampening": SGD(RATE, 0.5, dampening=0.25),
    "sgd-decay": SGD(RATE, weight_decay=DECAY),
    "momentum-decay": SGD(RATE, 0.5, weight_decay=DECAY),
    "sgd-maximize": SGD(RATE, weight_decay=DECAY, maximize=True),
    "adam-decay": replace(ADAM, weight_decay=DECAY),
    "adam-amsgrad": replace(ADAM, amsgrad=True),
    "adam-amsgrad-decay": replace(ADAM, amsgrad=True, weight_decay=DECAY),
    "adam-maximize": replace(ADAM, maximize=True),
    "adamw-amsgrad": replace(ADAMW, amsgrad=True),
    "adamw-maximize": replace(ADAMW, maximize=True),
    "adagrad-epsilon": Adagrad(RATE, epsilon=0.25),
    "adagrad-rate-decay": Adagrad(RATE, epsilon=2.0**-10, initial=0.25, rate_decay=0.5),
    "adagrad-decay": Adagrad(RATE, epsilon=2.0**-10, initial=0.25, weight_decay=DECAY),
    "rmsprop-epsilon": RMSprop(RATE, decay=0.75, epsilon=0.25),
    "rmsprop-momentum": RMSprop(RATE, decay=0.75, epsilon=2.0**-10, momentum=0.5),
    "rmsprop-centred": RMSprop(RATE, decay=0.75, epsilon=2.0**-4, centred=True),
    "rmsprop-centred-momentum": RMSprop(RATE, decay=0.75, epsilon=2.0**-4, momentum=0.5, centred=True),
    "rmsprop-decay": RMSprop(RATE, decay=0.75, epsilon=2.0**-10, momentum=0.5, weight_decay=DECAY),
    "rmsprop-maximize": RMSprop(RATE, decay=0.75, epsilon=2.0**-10, maximize=True),
}
IMPLEMENTATIONS: tuple[Implementation, ...] = ("default", "single", "foreach", "fused", "capturable")
each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
HALVED = Steps((2,), (1.0, 0.5))


CASES = [
    (implementation, optimizer, precision)
    for implementation in IMPLEMENTATIONS
    for optimizer in OPTIMIZERS
    for precision in (FLOAT32, *PURE_LOW)
    if implementation != "default" or precision == FLOAT32 or optimizer in ("momentum", "adamw")
]


@clause("optimizer.implementations-agree")
@pytest.mark.parametrize(
    ("implementation", "optimizer", "precision"), CASES, ids=[f"{i}-{o}-{p.format}" for i, o, p in CASES]
)
def test_implementation_updates_every_element(
    subject: Subject, verdict: Verdict, implementation: Implementation, optimizer: str, precision: Precision
) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer], precision, implementation=implementation)
    judge_updates(subject, verdict, vectors(*SIZES), recipe, (0, -1, 0))


@clause("optimizer.options")
@pytest.mark.parametrize("option", OPTIONS)
@each_implementation
def test_optimizer_options(subject: Subject, verdict: Verdict, implementation: Implementation, option: str) -> None:
    judge_updates(
        subject, verdict, vectors(1, 33), Recipe(OPTIONS[option], implementation=implementation), (0, -2, -3, 0)
    )


@clause("optimizer.options")
@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_parameter_without_first_gradient(subject: Subject, verdict: Verdict, option: str) -> None:
    need(subject, Capability.MISSING_GRADIENTS)
    judge_updates(subject, verdict, vectors(1, 33), Recipe(OPTIONS[option]), (0, -2, -3, 0), late=True)


@clause("optimizer.options")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@each_implementation
def test_tensor_learning_rate_matches_float(
    subject: Subject, verdict: Verdict, implementation: Implementation, optimizer: str
) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer], schedule=HALVED, implementation=implementation, tensor_rate=True)
    judge_updates(subject, verdict, vectors(1, 33), recipe, (0, -2, -3, 0))


@clause("master.decay-of-nobody")
@pytest.mark.parametrize("left_out", ["first-group", "second-group", "one-of-each"])
def test_decay_excludes_parameters_of_a_group(subject: Subject, verdict: Verdict, left_out: str) -> None:
    names = tuple(two_heads().parameter_shapes())
    undecayed = {"first-group": names[::2], "second-group": names[1::2], "one-of-each": names[:2]}[left_out]
    recipe = Recipe(ADAMW, groups=2, second_rate=2.0 * RATE, second_decay=1.0, undecayed=undecayed)
    judge_updates(subject, verdict, two_heads(), recipe, (0, -2, 0))


@clause("master.decay-of-nobody")
@pytest.mark.parametrize("left_out", ["all", "none", "one"])
@each_implementation
def test_decay_excludes_parameters(
    subject: Subject, verdict: Verdict, implementation: Implementation, left_out: str
) -> None:
    names = tuple(two_heads().parameter_shapes())
    undecayed = {"all": names, "none": (), "one": names[:1]}[left_out]
    judge_updates(
        subject, verdict, two_heads(), Recipe(ADAMW, implementation=implementation, undecayed=undecayed), (0, -2, 0)
    )
