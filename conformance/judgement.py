"""From what happened in a test to its outcome, with the expectations that apply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.expectations import Expectation, explain, judge
from conformance.verdict import Abstention, Misdeclared, Violation, cleaned
from frameworks.base import observed
from frameworks.contract import Framework, Unsupported
from results.outcomes import Outcome


@dataclass(frozen=True)
class Judgement:
    """An outcome with what explains it."""

    outcome: Outcome
    signature: str = ""
    message: str = ""
    reason: str = ""
    link: str = ""
    finding: str = ""


def conclude(framework: Framework, error: BaseException | None, matching: Sequence[Expectation]) -> Judgement:
    """What a test came to, given the exception that ended it and the expectations that cover it."""
    match error:
        case Unsupported():
            return _unsupported(framework, error)
        case Abstention():
            return Judgement(Outcome.ABSTAIN, message=str(error), reason=str(error))
        case None:
            verdict, entry = judge(False, "", matching)
            if verdict == "fixed" and entry is not None:
                return _resting(entry, Outcome.FIXED, entry.signature, explain(verdict, "", entry))
            return Judgement(Outcome.PASS)
        case _:
            return _failed(error, matching)


def _resting(entry: Expectation, outcome: Outcome, signature: str, message: str) -> Judgement:
    return Judgement(outcome, signature, message, entry.reason, entry.link, entry.finding.id)


def _unsupported(framework: Framework, error: Unsupported) -> Judgement:
    """A refusal is believed if it is declared, or has an attempt of its own, and the attempt was not seen to act."""
    signature = str(error.capability)
    if error.attempt is None and framework.declares(error.capability).supported:
        message = f"{error.capability} is declared as supported, but: {error.reason}"
        return Judgement(Outcome.MISDECLARED, signature, message, error.reason)
    acted = _acted(framework, error)
    if acted:
        message = f"{error.capability} is refused, but the framework's own call was seen to act: {error.reason}"
        return Judgement(Outcome.MISDECLARED, signature, message, error.reason)
    asked = "tried" if acted is False else "nothing to try"
    return Judgement(Outcome.UNSUPPORTED, signature, f"{error} ({asked})", error.reason)


def _acted(framework: Framework, error: Unsupported) -> bool | None:
    """What a try of what is refused shows; the settings that it leaves changed are put back."""
    settings = framework.global_state()
    try:
        return framework.probe(error.capability) if error.attempt is None else observed(error.attempt)
    finally:
        framework.restore_global_state(settings)


def _failed(error: BaseException, matching: Sequence[Expectation]) -> Judgement:
    said = "\n".join((str(error), *getattr(error, "__notes__", ())))
    text = cleaned(said) or type(error).__name__
    if isinstance(error, Misdeclared):
        return Judgement(Outcome.MISDECLARED, error.signature, text)
    if isinstance(error, Violation):
        bad, signature = Outcome.FAIL, error.signature
    elif text.startswith("Timeout"):
        bad, signature = Outcome.TIMEOUT, "timeout"
    else:
        bad, signature = Outcome.ERROR, f"raises-{type(error).__name__}"
        text = f"{type(error).__name__}: {text}"
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    verdict, entry = judge(True, signature, matching)
    if verdict == "known" and entry is not None:
        return _resting(entry, Outcome.KNOWN, signature, text)
    note = explain(verdict, signature, entry)
    return Judgement(bad, signature, f"{text} ({note})" if note else text)


_LONGEST = 2000
