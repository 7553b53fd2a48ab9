"""Results of models as text: the checks of one model, the table of a sweep, and what changed between two."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from conformance.models.judgements import JudgedModel, ModelCheck, Sweep, clauses, known

_WORDS: Mapping[str, str] = {"fail": "FAIL"}
MOST_NAMES = 6


def one(model: JudgedModel, versions: Mapping[str, str]) -> Iterator[str]:
    """Lines for one model: every check, for each failure the requirement and its source, and the number of each."""
    yield f"{model.model} ({_versions(versions)}), {model.seconds:.1f} s"
    for check in model.checks:
        result = _result(model, check)
        yield f"  {_WORDS.get(result, result):<10} {_name(check)}: {_said(check)}"
    for identifier in dict.fromkeys(check.clause for check in model.checks if check.outcome == "fail"):
        clause = clauses()[identifier]
        yield ""
        yield f"{identifier} ({clause.level}): {clause.requirement}"
        yield f"  source: {clause.source}"
        for cause in dict.fromkeys(each.cause for each in model.checks if each.clause == identifier and each.cause):
            yield f"  cause: {cause}"
            if name := known(model.model, cause):
                yield f"  finding: {name}, in `conformance findings torch`"
    yield ""
    yield count_results([model])


def count_results(models: Sequence[JudgedModel]) -> str:
    """The number of each result, in one line."""
    results = Counter(_result(model, check) for model in models for check in model.checks)
    texts = {"fail": "failed", "known": "known", "pass": "passed", "not judged": "not judged"}
    return ", ".join(f"{results[result]} {text}" for result, text in texts.items() if results[result]) or "no results"


def _result(model: JudgedModel, check: ModelCheck) -> str:
    """The result of a check; "known" for a failure that a finding names."""
    return "known" if check.outcome == "fail" and known(model.model, check.cause) else check.outcome


def _name(check: ModelCheck) -> str:
    return f"{check.clause}[{check.case}]" if check.case else check.clause


def _said(check: ModelCheck) -> str:
    if check.outcome == "not judged":
        return check.got
    return f"got {check.got}, want {check.want}" if check.want else check.got


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def table(sweep: Sweep) -> Iterator[str]:
    """Markdown of a sweep: classes by clause and result, classes by kind of head, causes, and what was not run."""
    run, left = sweep.run, sweep.not_run
    yield f"# Heads of transformers {sweep.versions.get('transformers', '')}"
    yield ""
    yield f"{len(run)} of {len(sweep.models)} classes were trained, {len(left)} were not ({_versions(sweep.versions)})."
    late = sum(not model.had_its_turn for model in sweep.models)
    processor = sum(model.seconds for model in sweep.models)
    end = f"; {_classes(late)} had no turn: the sweep did not get to the end" if late else ""
    yield f"{sweep.seconds:.0f} s, {processor:.0f} s of processors{end}."
    yield ""
    yield "| clause | pass | fail | not judged |"
    yield "|---|---|---|---|"
    clauses_judged = dict.fromkeys(check.clause for model in run for check in model.checks)
    counted = {clause: Counter(model.outcomes().get(clause) for model in run) for clause in clauses_judged}
    for clause, counts in counted.items():
        yield f"| `{clause}` | {counts['pass']} | {counts['fail']} | {counts['not judged'] + counts[None]} |"
    yield ""
    yield "## By kind of head"
    yield ""
    yield from _kinds(sweep, [clause for clause, counts in counted.items() if counts["fail"]])
    yield ""
    yield "## Causes"
    yield ""
    for (clause, cause), names in sorted(sweep.failed().items(), key=lambda each: (each[0][0], -len(each[1]))):
        finding = known(names[0], cause)
        yield f"- `{clause}`: {cause} ({_classes(len(names))}{f', {finding}' if finding else ''}): {_some(names)}"
    yield ""
    yield "## Not run"
    yield ""
    reasons: dict[str, list[str]] = {}
    for model in left:
        reasons.setdefault(_reason(model.not_run), []).append(model.model)
    for reason, names in sorted(reasons.items(), key=lambda each: -len(each[1])):
        yield f"- {reason} ({_classes(len(names))}): {_some(names)}"
    yield ""
    yield count_results(sweep.models)


def _kinds(sweep: Sweep, failing: list[str]) -> Iterator[str]:
    yield f"| kind | classes | {' | '.join(f'`{clause}`' for clause in failing)} |"
    yield f"|---|---|{'---|' * len(failing)}"
    kinds: dict[str, list[JudgedModel]] = {}
    for model in sweep.run:
        kinds.setdefault(kind_of(model.model), []).append(model)
    small = [model for models in kinds.values() if len(models) < 3 for model in models]
    frequent = {kind: models for kind, models in kinds.items() if len(models) >= 3}
    for kind, models in [*sorted(frequent.items(), key=lambda each: -len(each[1])), ("other", small)]:
        cells = [_failing(models, clause) for clause in failing]
        yield f"| {kind} | {len(models)} | {' | '.join(cells)} |"


def _failing(models: list[JudgedModel], clause: str) -> str:
    result = [model.outcomes().get(clause, "not judged") for model in models]
    judged = len(result) - result.count("not judged")
    return f"{result.count('fail')} of {judged}" if judged else ""


def kind_of(model: str) -> str:
    """What follows "For" in the name of a class; "LMHeadModel" is CausalLM."""
    name = model.partition(":")[2]
    match = re.search(r"For([A-Z]\w*)$", name)
    return match[1] if match else "CausalLM" if name.endswith("LMHeadModel") else name


def _classes(number: int) -> str:
    return f"{number} class" if number == 1 else f"{number} classes"


def _some(names: list[str]) -> str:
    text = ", ".join(name.partition(":")[2] for name in names[:MOST_NAMES])
    return text if len(names) <= MOST_NAMES else f"{text} and {len(names) - MOST_NAMES} more"


def _reason(text: str) -> str:
    """A reason without the numbers that differ from class to class."""
    return re.sub(r"\d[\d,.]*", "N", text)[:110]


def changes(old: Sweep, new: Sweep) -> Iterator[str]:
    """Lines about classes that only one side has or could train, and results that differ.

    Classes that had no turn on a side are counted and not compared.
    """
    late = {model.model for each in (old, new) for model in each.models if not model.had_its_turn}
    before, now = ({model.model: model for model in each.models if model.model not in late} for each in (old, new))
    yield f"{_versions(old.versions)} -> {_versions(new.versions)}"
    if late:
        yield f"not compared, because they had no turn on a side: {_classes(len(late))}"
    yield f"compared: {_classes(len(before.keys() & now.keys()))}"
    for words, names in (
        ("only in the older", sorted(before.keys() - now.keys())),
        ("only in the newer", sorted(now.keys() - before.keys())),
    ):
        if names:
            yield f"{words}: {_classes(len(names))}: {_some(names)}"
    moved: dict[str, list[str]] = {}
    for name in sorted(before.keys() & now.keys()):
        for change in _moves(before[name], now[name]):
            moved.setdefault(change, []).append(name)
    for change, names in sorted(moved.items()):
        yield f"{change}: {_classes(len(names))}: {_some(names)}"
    if not moved:
        yield "no result of a class in both differs"


def _moves(old: JudgedModel, new: JudgedModel) -> Iterator[str]:
    if bool(old.not_run) != bool(new.not_run):
        yield "trained, now not run" if new.not_run else "not run, now trained"
        return
    then, now = old.outcomes(), new.outcomes()
    for clause in {**then, **now}:
        if (was := then.get(clause, "not judged")) != (is_ := now.get(clause, "not judged")):
            yield f"{clause}: {was} -> {is_}"


def worse(old: Sweep, new: Sweep) -> list[str]:
    """Failures, as "CLASS CLAUSE", that the older sweep does not have, and classes that it trained and this did not."""
    before = {model.model: model for model in old.models}
    result = []
    for model in new.models:
        former = before.get(model.model)
        if not model.had_its_turn or (former is not None and not former.had_its_turn):
            continue
        if model.not_run:
            if former is not None and not former.not_run:
                result.append(f"{model.model} not run")
            continue
        then = former.outcomes() if former is not None else {}
        result += [
            f"{model.model} {clause}"
            for clause, result in model.outcomes().items()
            if result == "fail" and then.get(clause) != "fail"
        ]
    return result
