"""The law of recomputed calls: recomputation gives the result of the plain call."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from conformance.checks.evidence import cleaned, same_bits, short_text
from conformance.checks.subject import Subject
from conformance.generative.operations import NestedScope, failed, opened
from conformance.oracle.errormodel import distance
from conformance.search.adapter_settings import GenerativeSettings
from conformance.search.arrays import laid_out, nth
from conformance.search.properties import Failure
from conformance.techniques.recompute import function_bounds, of_two_runs
from fixtures.arrays import Array
from frameworks.contract import RecomputeCase, RecomputeResult, Unsupported

TRACELESS = "recompute.failure-leaves-no-trace"
REFUSABLE: tuple[RecomputeCase, ...] = ("tuple", "list", "dict", "keyword", "raises")
"""Ways to pass arguments that a framework may refuse with an exception, and the one that must raise."""


@dataclass(frozen=True)
class Calls:
    """Recomputed calls in a row, any of which may raise, all of them in one precision scope if there is one."""

    calls: tuple[Call, ...]
    scope: NestedScope | None = None

    def words(self) -> frozenset[str]:
        """What exclusions may name."""
        scope = {f"scope={self.scope.format}"} if self.scope is not None else set()
        return frozenset(word for call in self.calls for word in call.words()) | scope

    def failure(self, subject: Subject, laws: GenerativeSettings) -> Failure | None:
        """The first difference from the plain call, which is made before all others in the same scope."""
        plain: list[RecomputeResult] = []
        for call in self.calls:
            try:
                with self._opened(subject):
                    plain.append(subject.framework.recompute("plain", *call.operands()))
            except Unsupported:
                raise
            except Exception as error:
                return failed("raised", f"a plain call raised {type(error).__name__}: {cleaned(str(error))[:200]}")
        with self._opened(subject):
            pairs = zip(self.calls, plain, strict=True)
            return next(filter(None, (call.apart_from(subject, result) for call, result in pairs)), None)

    def _opened(self, subject: Subject) -> AbstractContextManager[None]:
        return nullcontext() if self.scope is None else opened(subject, self.scope)

    def clause(self, subject: Subject, laws: GenerativeSettings, failure: Failure) -> tuple[str, str]:
        """The clause that a failure breaks, and the message."""
        clause = "recompute.same-loss" if failure.name == "value" else "recompute.same-gradients"
        if len(self.calls) > 1 and Calls(self.calls[-1:], self.scope).failure(subject, laws) is None:
            clause = TRACELESS
        return clause, failure.breaking(clause)


@dataclass(frozen=True)
class Call:
    """A recomputed call of Σ tanh(x·w), with x (n, m) and w (m, k) of these sizes."""

    way: RecomputeCase
    variant: str | None
    sizes: tuple[int, int, int]
    seed: int

    def words(self) -> frozenset[str]:
        """What exclusions may name."""
        return frozenset({f"call={self.way}", f"recompute.variant={self.variant or 'default'}"})

    def operands(self) -> tuple[Array, Array]:
        """x and w, as they lie in memory."""
        rng = np.random.default_rng([self.seed, 26])
        n, m, k = self.sizes
        x, w = rng.standard_normal((n, m)).astype(np.float32), rng.standard_normal((m, k)).astype(np.float32)
        return laid_out(x, nth(self.seed)), laid_out(w, nth(self.seed + n))

    def apart_from(self, subject: Subject, plain: RecomputeResult) -> Failure | None:
        """The difference from the plain call; a container, or arguments by name, may be refused."""
        x, w = self.operands()
        try:
            here = subject.framework.recompute(self.way, x, w, self.variant)
        except Unsupported:
            raise
        except Exception as error:
            raised = f"a recomputed call, {self}, raised {type(error).__name__}: {cleaned(str(error))[:200]}"
            return None if self.way in REFUSABLE else failed("raised", raised)
        bounds = function_bounds(x, w, subject.seed) if subject.conventions.compiled else {}
        for name in ("value", "x", "w"):
            mine, other = getattr(here, name), getattr(plain, name)
            if name == "x" and self.way == "no-grad-input":
                continue
            if mine is not None and other is not None and bounds:
                apart = distance(np.asarray(mine, np.float64), np.asarray(other, np.float64))
                if apart <= of_two_runs(bounds[name]).value:
                    continue
            if not same_bits(mine, other):
                values = f"got {short_text(mine)}, want {short_text(other)} as in the plain call"
                return failed(name, f"{name} of the recomputed call: {values}")
        return None
