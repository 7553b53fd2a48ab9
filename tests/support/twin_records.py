"""An adapter's known failures, and records of runs that show them or do not."""

from dataclasses import replace
from pathlib import Path

from conformance.known_failures.confirm import Confirmation, confirm
from conformance.known_failures.reading import read_known
from results.record.model import TestVerdict, Variant
from results.record.outcomes import Outcome
from results.record.reading import Record
from tests.support.small_record import BASE

CLAUSE = "scaling.stays-finite"
FIRST = """[[finding]]
id = "first"
class = "documented"
consequence = "error"
reason = "It does."
link = "none found"
"""
TEXT = f"""# What Twin is known not to do.

[judged]
cpu.eager = ["1.0", "2.0"]  # by hand

{FIRST}
[[expectation]]
finding = "first"  # a comment
clause = "scaling.stays-finite"
versions = ">=1.0,<=2.0"
cases = ["test_a[x]", "test_b"]
signature = "differs"

# Another one

[[finding]]
id = "second"
class = "documented"
consequence = "cost"
reason = \"\"\"
It does
too.\"\"\"
link = "none found"

[[expectation]]
finding = "second"
clause = "scaling.stays-positive"
versions = "==2.0"
signature = "zero"

[[expectation]]
finding = "second"
clause = "scaling.automaton"
versions = "==2.0"
mode = "other"
signature = "zero"
"""


def write_expectations(folder: Path, text: str = TEXT) -> Path:
    """The twin's file of known failures, in a folder of its name."""
    path = folder / "twin" / "expectations.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def failing(case: str, signature: str = "differs", clause: str = CLAUSE) -> TestVerdict:
    """A known failure."""
    return TestVerdict(f"{clause}/{case}", clause, Outcome.KNOWN, signature, seed=0)


def passing(case: str, clause: str = CLAUSE, outcome: Outcome = Outcome.PASS) -> TestVerdict:
    """A verdict that is no failure."""
    return TestVerdict(f"{clause}/{case}", clause, outcome, seed=0)


ZERO = failing("test_c", "zero", "scaling.stays-positive")
BOTH = (failing("test_a[x]"), failing("test_b"), ZERO)


def record(version: str, *verdicts: TestVerdict) -> Record:
    """A whole run of the twin."""
    (text,) = BASE.clauses.values()
    clauses = {verdict.clause: text for verdict in verdicts}
    series = replace(BASE.series, framework="twin")
    return replace(BASE, series=series, variant=Variant(version), verdicts=verdicts, clauses=clauses).sorted()


def confirmed(path: Path, *records: Record) -> Confirmation:
    """The update of the twin's file by records."""
    return confirm(records, read_known(path.parent, "twin"), path.read_text("utf-8"))
