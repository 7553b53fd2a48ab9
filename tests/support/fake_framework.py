"""A framework of a few callables, and an adapter that calls it, as source text."""

from __future__ import annotations

FAKE = '''
import functools
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from fake_base import Base

__all__ = ["Mode", "Named", "Optimizer", "SGD", "Wrong", "clip", "clip_alias", "half", "policy", "recompute", "scope"]


class Mode(Enum):
    FAST = 1


class Wrong(ValueError):
    pass


class Meta(type):
    def __call__(cls, *args, **kwargs):
        return super().__call__(*args, **kwargs)


class Optimizer(Base, metaclass=Meta):
    def __init__(self, params, defaults=None):
        self.params = params

    def step(self, closure=None):
        """Goes one step."""

    def _inner(self):
        pass


class SGD(Optimizer):
    def __init__(self, params, lr=0.1, momentum=0, *, mode=Mode.FAST, _hidden=1, **more):
        super().__init__(params, {"lr": lr})
        clip(params, 2.0)


@dataclass
class Named:
    name: str = "a"
    scale: float = 1.0


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@decorated
def clip(grads, norm=1.0, *rest):
    return grads


clip_alias = clip
half = functools.partial(clip, norm=0.5)


def policy(_name, name=None):
    return name


def recompute(function, policy=None):
    return function()


@contextmanager
def scope(dtype="float32"):
    yield


def unlisted():
    pass
'''
BASE = """
class Base:
    def zero_grad(self, set_to_none=True):
        pass

    @classmethod
    def restored(cls, state):
        return cls(state)
"""
SURFACE = """
general = []

[techniques]
optimizers = ["fake_frame", "!fake_frame.Named", "!fake_frame.scope", "fake_frame.Gone"]
others = ["fake_frame.*d", "fake_frame.scope", "fake_frame.unlisted"]

[reasons]
"*.SGD:mode" = "one mode"
"fake_frame.Named*" = "a name"
"""
OTHER = """
import fake_frame
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer


class Trainer(ReferenceTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        fake_frame.SGD([], lr=0.25)


class Other(ReferenceFramework):
    name = "other"
    trainer_class = Trainer
"""
NAME = "fake_adapter:Other"
