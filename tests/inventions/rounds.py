"""Runs a round of invention: for every fault, the first test that fails, the laws before all others."""

from __future__ import annotations

import json
import pkgutil
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.mutants.engine import FIRST, LAW_TESTS, SUITES, UNENDED, Engine, RunError, first_failure

from tests.inventions import FAULTS

FOLDER = Path(__file__).parent
RESULT, PARTIAL = "result.json", "result.partial.json"
SHOWN = 3
"""Rounds whose rate the README shows."""
MUTATION = FOLDER.parents[1] / "docs" / "mutation.md"


@dataclass(frozen=True)
class Invention:
    """A fault of a round."""

    name: str
    text: str
    link: str
    clause: str
    kind: str

    @property
    def label(self) -> str:
        """The class's name."""
        return self.name.rpartition(":")[2]


@dataclass(frozen=True)
class Seen:
    """What the suites said of a fault.

    Attributes:
        test: the first test that failed, "" if none did.
        clause: the clause of that test.
        breaks: the signature that it failed with; of a law, the clause that the failure breaks.
        message: the beginning of its message.
    """

    fault: str
    test: str = ""
    clause: str = ""
    breaks: str = ""
    message: str = ""

    @property
    def by_laws(self) -> bool:
        """Whether drawn programs showed it."""
        return self.clause.startswith("laws.")


def rounds() -> list[str]:
    """Every round, the oldest first."""
    return sorted(path.name for path in FOLDER.glob("round_*") if path.is_dir())


def inventions(name: str) -> list[Invention]:
    """The faults of a round, in the order of its modules.

    Raises:
        ValueError: there is no such round.
    """
    if name not in rounds():
        raise ValueError(f"there is no round {name!r}; there are {', '.join(rounds())}")
    package = f"tests.inventions.{name}"
    for module in pkgutil.iter_modules([str(FOLDER / name)]):
        if module.name.startswith("faults"):
            import_module(f"{package}.{module.name}")
    return [
        Invention(f"{made.__module__}:{made.__name__}", " ".join((made.__doc__ or "").split()), link, clause, kind)
        for made in FAULTS
        if made.__module__.startswith(f"{package}.")
        for link, clause, kind in [(getattr(made, "link"), getattr(made, "clause"), getattr(made, "kind"))]  # noqa: B009
    ]


def seen(engine: Engine, fault: Invention) -> Seen:
    """What the suites say of a fault: the laws first, then all other tests, up to the first failure.

    Raises:
        RunError: no test failed, and one did not end, so that nothing is known.
    """
    others = [str(path) for path in sorted(Path(SUITES).glob("test_*.py")) if path.name != Path(LAW_TESTS).name]
    unended: list[str] = []
    for tests in ([LAW_TESTS], others):
        verdicts = engine.run(fault.name, "", tests, fault.label, more=FIRST)
        unended += [verdict.test for verdict in verdicts if verdict.outcome in UNENDED]
        failed = first_failure(verdicts)
        if failed is not None:
            return Seen(fault.label, failed.test, failed.clause, failed.signature or "", failed.message[:300])
    if unended:
        raise RunError(f"{unended[0]} did not end")
    return Seen(fault.label)


def run(faults: Sequence[Invention], workers: int) -> list[Seen]:
    """What the suites say of every fault, printed as it ends; faults whose run does not end are left out."""
    engine = Engine()

    def judged(fault: Invention) -> Seen | None:
        try:
            result = seen(engine, fault)
        except RunError as error:
            print(f"UNKNOWN {fault.kind:9} {fault.label}: {error}", flush=True)
            return None
        word = "laws" if result.by_laws else "suites" if result.test else "MISSED"
        print(f"{word:7} {fault.kind:9} {fault.label}: {result.breaks or '-'}  ({fault.clause})", flush=True)
        return result

    with ThreadPoolExecutor(workers) as pool:
        return [each for each in pool.map(judged, faults) if each is not None]


def blocks() -> dict[str, str]:
    """What every round came to when its faults were met for the first time, and why some were missed."""
    lines = ["| round | faults | from real bugs | caught at first sight | by drawn programs |", "|---|---|---|---|---|"]
    missed = ["| round | fault | what is wrong | why it was missed |", "|---|---|---|---|"]
    for name in rounds():
        if not (FOLDER / name / RESULT).exists():
            continue
        result, faults = stored(name), {fault.label: fault for fault in inventions(name)}
        shown = [Seen(**each) for each in result["faults"]]
        caught = [each for each in shown if each.test]
        real = sum(faults[each.fault].kind == "real" for each in shown)
        share = f"{len(caught)} of {len(shown)} ({100 * len(caught) // len(shown)} %)"
        word = _word(name)
        lines.append(f"| {word} | {len(shown)} | {real} | {share} | {sum(each.by_laws for each in caught)} |")
        reasons = result.get("reasons", {})
        missed += [
            f"| {word} | {each.fault} | {faults[each.fault].text} | {reasons.get(each.fault, '')} |"
            for each in shown
            if not each.test
        ]
    return {
        "scores": _scores(),
        "inventions": "\n".join(lines),
        "inventions by family": _by_family(),
        "missed inventions": "\n".join(missed),
    }


def _by_family() -> str:
    """How many faults of each family of clauses were caught at first sight, in all rounds together and in the last."""
    columns: list[Counter[tuple[str, bool]]] = []
    met = [name for name in rounds() if (FOLDER / name / RESULT).exists()]
    for names in (met, met[-1:]):
        counts: Counter[tuple[str, bool]] = Counter()
        for name in names:
            families = {fault.label: fault.clause.partition(".")[0] for fault in inventions(name)}
            counts.update((families[each["fault"]], bool(each["test"])) for each in stored(name)["faults"])
        columns.append(counts)
    lines = [f"| family | caught in all rounds | in {_word(met[-1])} |", "|---|---|---|"]
    for family in sorted({family for family, _ in columns[0]}):
        shown = (f"{c[family, True]} of {c[family, True] + c[family, False]}" for c in columns)
        lines.append(f"| {family} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _word(name: str) -> str:
    return name.removeprefix("round_").replace("_", "-")


def _scores() -> str:
    """The regression gate, as the page of the mutants has it, and the rate at first sight: last rounds, and all."""
    gate = re.search(r"^score \d+ %: (\d+ of \d+) mutants", MUTATION.read_text("utf-8"), re.MULTILINE)
    met = [name for name in rounds() if (FOLDER / name / RESULT).exists()]
    last = ", ".join(f"{_caught(name)} ({_word(name)})" for name in reversed(met[-SHOWN:]))
    return (
        f"  regression gate {gate[1] if gate else 'not measured'} mutants; at first sight {last},"
        f" and {_caught(*met)} faults in all {len(met)} rounds."
    )


def _caught(*names: str) -> str:
    faults = [fault for name in names for fault in stored(name)["faults"]]
    return f"{sum(bool(fault['test']) for fault in faults)} of {len(faults)}"


def stored(name: str) -> dict[str, Any]:
    """What a round came to when it was run for the first time."""
    content: dict[str, Any] = json.loads((FOLDER / name / RESULT).read_text("utf-8"))
    return content


def begun(name: str) -> list[Seen]:
    """What is known of a round some of whose runs did not end."""
    path = FOLDER / name / PARTIAL
    return [Seen(**each) for each in json.loads(path.read_text("utf-8"))["faults"]] if path.exists() else []


def store(name: str, results: Sequence[Seen], whole: bool, **about: str) -> None:
    """Writes what a round came to, or so far; a stored result stands."""
    path, partial = FOLDER / name / RESULT, FOLDER / name / PARTIAL
    if path.exists():
        return
    content = json.dumps({**about, "faults": [asdict(each) for each in results]}, indent=1, sort_keys=True)
    (path if whole else partial).write_text(content + "\n", "utf-8")
    if whole:
        partial.unlink(missing_ok=True)
