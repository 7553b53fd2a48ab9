"""Results of models: checks, the table of a sweep, and their file."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from conformance.known_failures.reading import load_known
from conformance.spec.clauses import Clause, load_clauses, read_clauses
from results.record.files import RecordError, packed, read, replace

Result = Literal["pass", "fail", "not judged"]

INTERRUPTED, NO_TIME = "interrupted", "no time was left"
"""Reasons of models that had no turn."""

_OWN = Path(__file__).parent / "clauses"


@cache
def clauses() -> Mapping[str, Clause]:
    """The suite's clauses, and those that only models are judged by."""
    return {**read_clauses(_OWN), **load_clauses()}


class ModelCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """One check of one clause.

    Attributes:
        case: which of several checks of the clause, "" for its only one.
        got: what was measured; why, if it was not judged.
        want: what was expected, "" if it was not judged.
        cause: of a failure, words that all models share in which the same code is at fault, "" if the model alone is.
    """

    clause: str
    outcome: Result
    got: str = ""
    want: str = ""
    cause: str = ""
    case: str = ""


class JudgedModel(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model.

    Attributes:
        model: "transformers:CLASS" or "PACKAGE.MODULE:FACTORY".
        not_run: why it could not be trained, or not to the end, "" if it was.
    """

    model: str
    checks: tuple[ModelCheck, ...] = ()
    not_run: str = ""
    seconds: float = 0.0

    @property
    def had_its_turn(self) -> bool:
        """Whether the sweep got to it."""
        return self.not_run not in (INTERRUPTED, NO_TIME)

    def outcomes(self) -> dict[str, Result]:
        """The gravest result of each clause: fail, else pass, else not judged."""
        order: tuple[Result, ...] = ("fail", "pass", "not judged")
        result: dict[str, Result] = {}
        for check in self.checks:
            former = result.get(check.clause, check.outcome)
            result[check.clause] = min(former, check.outcome, key=order.index)
        return result


@cache
def _causes() -> Mapping[str, str]:
    """Patterns of causes, and the findings that name them."""
    return {cause: finding.id for finding in load_known().findings for cause in finding.causes}


def known(model: str, cause: str) -> str:
    """The finding that names a cause, or a model whose failure has none; "" without one."""
    return next((name for pattern, name in _causes().items() if fnmatchcase(cause or model, pattern)), "")


class Sweep(msgspec.Struct, frozen=True):
    """Models that were judged together.

    Attributes:
        versions: of libraries, by name.
        complete: whether every model had its turn.
    """

    versions: dict[str, str]
    models: tuple[JudgedModel, ...]
    complete: bool = True
    seconds: float = 0.0

    @property
    def run(self) -> tuple[JudgedModel, ...]:
        """The models that were trained."""
        return tuple(model for model in self.models if not model.not_run)

    @property
    def not_run(self) -> tuple[JudgedModel, ...]:
        """The models that were not, or not to the end."""
        return tuple(model for model in self.models if model.not_run)

    def new(self) -> list[str]:
        """Failures, as "MODEL CLAUSE", that no finding names."""
        return [
            f"{model.model} {check.clause}"
            for model in self.models
            for check in model.checks
            if check.outcome == "fail" and not known(model.model, check.cause)
        ]

    def failed(self) -> dict[tuple[str, str], list[str]]:
        """Models by (clause, cause) of a failure; a failure without a cause has its own model as cause."""
        result: dict[tuple[str, str], list[str]] = {}
        for model in self.models:
            for check in model.checks:
                if check.outcome == "fail":
                    names = result.setdefault((check.clause, check.cause or model.model), [])
                    if model.model not in names:
                        names.append(model.model)
        return result


def save(sweep: Sweep, path: Path) -> None:
    """Writes the file of a sweep, compressed if it is called NAME.gz. Texts of checks that passed are left out."""
    models = tuple(msgspec.structs.replace(model, checks=tuple(map(_short, model.checks))) for model in sweep.models)
    content = msgspec.json.encode(msgspec.structs.replace(sweep, models=models))
    replace(path, packed(path, msgspec.json.format(content, indent=1)))


def _short(check: ModelCheck) -> ModelCheck:
    return msgspec.structs.replace(check, got="", want="") if check.outcome == "pass" else check


def load(path: Path) -> Sweep:
    """The sweep of a file.

    Raises:
        RecordError: it cannot be read, or is no file of a sweep.
    """
    try:
        return msgspec.json.decode(read(path), type=Sweep)
    except msgspec.DecodeError as error:
        raise RecordError(
            path, f"is no table of models ({error})", "name a file of `conformance judge-model`"
        ) from None
