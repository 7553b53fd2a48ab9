"""Classifies the end of a test as an outcome, given the expectations that apply."""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace

from conformance.checks.evidence import Abstention, Misdeclared, Violation, clean_message
from conformance.known_failures.entries import Expectation, explain_repair
from frameworks.base import has_effect
from frameworks.contract import NOT_OFFERED, Framework, Unsupported
from results.record.model import Outcome

_READ, _LONGEST = 100_000, 2000
"""Largest numbers of characters that are read of an exception's text, and stored of a message."""


@dataclass(frozen=True)
class Judgement:
    """An outcome and its explanation; `inferred_from` is the series that an expectation was taken from, or ""."""

    outcome: Outcome
    signature: str = ""
    message: str = ""
    reason: str = ""
    link: str = ""
    finding: str = ""
    inferred_from: str = ""

    @property
    def mark(self) -> str:
        """The note on an expectation that nobody has confirmed in this series, or ""."""
        return f"not confirmed here, expected as in {self.inferred_from}" if self.inferred_from else ""


def conclude_safely(framework: Framework, error: BaseException | None, matching: Sequence[Expectation]) -> Judgement:
    """Return the judgement of `conclude` in valid UTF-8, even if an exception's text or a probe raises."""
    try:
        judgement = conclude(framework, error, matching)
    except Exception as problem:
        name, why = type(error).__name__, type(problem).__name__
        return Judgement(Outcome.ERROR, f"raises-{name}", f"{name}: cannot be judged or shown ({why})")
    texts = (str(text).encode("utf-8", "replace").decode("utf-8") for text in astuple(judgement)[1:])
    return Judgement(judgement.outcome, *texts)


def conclude(framework: Framework, error: BaseException | None, matching: Sequence[Expectation]) -> Judgement:
    """Return the outcome of a test, given the exception that ended it and the expectations that cover it."""
    match error:
        case Unsupported():
            return _judge_refusal(framework, error)
        case Abstention():
            return Judgement(Outcome.ABSTAIN, message=str(error), reason=str(error))
        case None:
            refuted = next((entry for entry in matching if not entry.may_pass), None)
            if refuted is None:
                return Judgement(Outcome.PASS)
            return _apply_expectation(refuted, Outcome.FIXED, refuted.signature, explain_repair(refuted))
        case _:
            return _judge_failure(error, matching)


def _apply_expectation(entry: Expectation, outcome: Outcome, signature: str, message: str) -> Judgement:
    cause = entry.finding
    result = Judgement(outcome, signature, message, cause.text.reason, cause.text.link, cause.id, entry.inferred_from)
    return replace(result, message=f"{message} ({result.mark})") if result.mark and outcome is Outcome.KNOWN else result


def _judge_refusal(framework: Framework, error: Unsupported) -> Judgement:
    """Judge a refusal: `unsupported` if a direct call had no effect, `not offered` if there was no call to try."""
    signature = str(error.capability)
    declared = framework.declares(error.capability)
    if error.attempt is None and declared.supported:
        message = f"adapter declares {error.capability} supported, but refuses it: {error.reason}"
        return Judgement(Outcome.MISDECLARED, signature, message, error.reason)
    effective = _can_call_directly(framework, error)
    if effective:
        message = f"adapter declares {error.capability} unsupported ({error.reason}), but a direct call succeeded"
        return Judgement(Outcome.MISDECLARED, signature, message, error.reason)
    if effective is False and (error.attempt is not None or declared != NOT_OFFERED):
        return Judgement(Outcome.UNSUPPORTED, signature, f"{error} (tried)", error.reason)
    return Judgement(Outcome.NOT_OFFERED, signature, f"{error} (nothing to try)", error.reason)


def _can_call_directly(framework: Framework, error: Unsupported) -> bool | None:
    """Return whether a direct call of the refused capability works, None without such a call; settings are restored."""
    settings = framework.global_state()
    try:
        return framework.probe(error.capability) if error.attempt is None else has_effect(error.attempt)
    finally:
        framework.restore_global_state(settings)


def _judge_failure(error: BaseException, matching: Sequence[Expectation]) -> Judgement:
    text = "\n".join((str(error), *getattr(error, "__notes__", ())))[:_READ]
    text = clean_message(text) or type(error).__name__
    if isinstance(error, Misdeclared):
        return Judgement(Outcome.MISDECLARED, error.signature, text)
    if isinstance(error, Violation):
        outcome, signature = Outcome.FAIL, error.signature
    elif text.startswith("Timeout"):
        outcome, signature = Outcome.TIMEOUT, "timeout"
    else:
        outcome, signature = Outcome.ERROR, f"raises-{type(error).__name__}"
        text = f"{type(error).__name__}: {text}"
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    expected = next((entry for entry in matching if entry.allows(signature)), None)
    if expected is not None:
        return _apply_expectation(expected, Outcome.KNOWN, signature, text)
    if matching:
        entry = matching[0]
        where = f"{entry.clause} on {entry.framework} {entry.versions}"
        text += f" (signature differs: got {signature!r}, want {entry.signature!r} for {where})"
    return Judgement(outcome, signature, text)


def find_unmatched(expectations: Iterable[Expectation], verdicts: Iterable[tuple[str, str]]) -> tuple[Expectation, ...]:
    """Return entries, or cases of entries, that matched no verdict of a complete run.

    Args:
        expectations: those that apply to the run.
        verdicts: clause and case of every verdict.

    Returns:
        Each entry with unmatched cases, its `cases` narrowed to these.
    """
    cases_by_clause: dict[str, set[str]] = {}
    for clause, case in verdicts:
        cases_by_clause.setdefault(clause, set()).add(case)
    unmatched: list[Expectation] = []
    for entry in expectations:
        cases = cases_by_clause.get(entry.clause, set())
        missing = tuple(case for case in entry.cases if case not in cases)
        if missing or not cases:
            unmatched.append(replace(entry, cases=missing))
    return tuple(unmatched)
