"""Mixed precision: properties of nested scopes, for generated programs."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from threading import Thread
from typing import Literal

import numpy as np
from hypothesis import strategies as st

from conformance.checks.api import Subject, Verdict, clause, need
from conformance.search import explore
from fixtures.recipe import BFLOAT16, FLOAT16, Precision
from frameworks.contract import Capability
from frameworks.operations import CATALOGUE

Way = Literal["return", "exception", "generator", "thread"]
FORMATS: dict[str, Precision] = {p.format: p for p in (FLOAT16, BFLOAT16)}
OPERATIONS = (
    "matmul",
    "batched_matmul",
    "linear",
    "conv2d",
    "softmax",
    "log_softmax",
    "sum",
    "exp",
    "layer_norm",
    "add",
)


@dataclass(frozen=True)
class Region:
    """A precision scope, how it ends, and the scopes opened in it."""

    format: str
    enabled: bool
    way: Way
    inner: tuple[Region, ...] = ()

    def formats(self) -> set[str]:
        """Return the formats requested by this scope and nested ones."""
        return {self.format}.union(*(region.formats() for region in self.inner))


def regions(halves: st.SearchStrategy[str]) -> st.SearchStrategy[Region]:
    """Return a strategy of scopes, nested up to three deep."""
    ways: st.SearchStrategy[Way] = st.sampled_from(["return", "exception", "generator", "thread"])

    def around(inner: st.SearchStrategy[tuple[Region, ...]]) -> st.SearchStrategy[Region]:
        return st.builds(Region, halves, st.booleans(), ways, inner)

    leaves = around(st.just(()))
    middle = around(st.lists(leaves, max_size=2).map(tuple))
    return around(st.lists(middle, min_size=1, max_size=2).map(tuple))


def one_or_both() -> st.SearchStrategy[Region]:
    """Return a strategy of programs in one 16-bit format, and of programs that mix both."""
    single = st.sampled_from(sorted(FORMATS)).flatmap(lambda name: regions(st.just(name)))
    return single | regions(st.sampled_from(sorted(FORMATS)))


class Walk:
    """Runs a program and records the expected format and the format of a product of float32 operands."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.formats: list[str] = []
        self.predicted: list[str] = []

    def note(self, predicted: str) -> None:
        """Record one step: a product at the current position."""
        self.formats.append(self._subject.framework.run_op("matmul", *CATALOGUE["matmul"]()).dtype)
        self.predicted.append(predicted)

    def enter(self, region: Region, outside: str) -> None:
        """Enter a scope, run its content and leave it; afterwards the previous setting applies."""
        if region.way == "thread":
            thread = Thread(target=self._walk_and_catch, args=(region,))
            thread.start()
            thread.join()
        elif region.way == "generator":
            self._walk_in_generator(region)
        else:
            self._walk_and_catch(region)
        self.note(outside)

    def _walk_and_catch(self, region: Region) -> None:
        try:
            with self._subject.framework.autocast(FORMATS[region.format], enabled=region.enabled):
                self._walk(region)
                if region.way == "exception":
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass

    def _walk_in_generator(self, region: Region) -> None:
        def open_scope() -> Generator[None]:
            with self._subject.framework.autocast(FORMATS[region.format], enabled=region.enabled):
                yield

        steps = open_scope()
        next(steps)
        self._walk(region)
        steps.close()

    def _walk(self, region: Region) -> None:
        inside = region.format if region.enabled else "float32"
        self.note(inside)
        for inner in region.inner:
            self.enter(inner, inside)


@clause("autocast.scope-nests")
@explore(one_or_both(), examples=12)
def test_innermost_scope_applies(subject: Subject, verdict: Verdict, case: Region) -> None:
    need(subject, *(Capability.of(FORMATS[name]) for name in sorted(case.formats())))
    before = subject.framework.global_state()
    walk = Walk(subject)
    walk.enter(case, "float32")
    subject.framework.restore_global_state(before)
    verdict.equal(walk.formats, walk.predicted, "formats of a product, step by step", "wrong-scope")


@dataclass(frozen=True)
class Disabled:
    """An operation on generated values in a disabled region, at the top or within another scope."""

    op: str
    format: str
    nested: bool
    seed: int


@clause("autocast.disabled-is-identity")
@explore(
    st.builds(
        Disabled, st.sampled_from(OPERATIONS), st.sampled_from(sorted(FORMATS)), st.booleans(), st.integers(0, 2**16)
    ),
    examples=16,
)
def test_disabled_region_matches_float32_bitwise(subject: Subject, verdict: Verdict, case: Disabled) -> None:
    precision = FORMATS[case.format]
    need(subject, Capability.of(precision))
    rng, autocast, run = np.random.default_rng(case.seed), subject.framework.autocast, subject.framework.run_op
    arrays = [rng.standard_normal(a.shape).astype(a.dtype) for a in CATALOGUE[case.op]()]
    plain = run(case.op, *arrays)
    with autocast(precision, enabled=case.nested), autocast(precision, enabled=False):
        result = run(case.op, *arrays)
    verdict.equal(result.dtype, plain.dtype, f"format of {case.op} in a disabled region")
    verdict.equal(result.value, plain.value, f"{case.op} in a disabled region, compared with no scope")
