"""Which mutants there are, read from their source without importing it, and the page of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
OWN = {"__init__", "__main__", "catalogue", "engine", "score", "stop"}


@dataclass(frozen=True)
class Mutant:
    """A framework with one fault.

    Attributes:
        name: what `--framework` takes, "tests.mutants.MODULE:CLASS".
        framework: whose fault it is, "reference" or an adapter's name.
        fault: what is wrong, in one sentence.
        link: the real bug that it brings back.
        component: where the fault lives.
        clauses: the clauses that are about it, each of which must fail.
        raises: the fault shows as an exception of the framework's own.
        mode: the adapter's mode, "" for its first.
        names: what the message of every failing verdict of these clauses must contain, "" for nothing.
    """

    name: str
    framework: str
    fault: str
    link: str
    component: str
    clauses: tuple[str, ...]
    raises: bool = False
    mode: str = ""
    names: str = ""

    @property
    def family(self) -> str:
        """The family of the first clause."""
        return self.clauses[0].split(".", 1)[0]

    @property
    def id(self) -> str:
        """Module and class, which no other mutant shares."""
        return self.name.removeprefix("tests.mutants.").replace(":", ".")

    @property
    def label(self) -> str:
        """The class's name."""
        return self.name.rpartition(":")[2]


def mutants(folder: Path = FOLDER) -> tuple[Mutant, ...]:
    """Every mutant, by module and in the order of the source.

    A module `adapter_NAME_PART` has faults of the adapter NAME, every other one faults of the reference.

    Raises:
        ValueError: a `fault` decorator is not made of literals, or a mutant has no docstring.
    """
    found: list[Mutant] = []
    for path in sorted(folder.glob("*.py")):
        if path.stem not in OWN:
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef) and (mark := _mark(node)) is not None:
                    found.append(_mutant(path.stem, node, mark))
    return tuple(found)


def _mark(node: ast.ClassDef) -> ast.Call | None:
    for mark in node.decorator_list:
        match mark:
            case ast.Call(func=ast.Name(id="fault")):
                return mark
    return None


def _mutant(module: str, node: ast.ClassDef, mark: ast.Call) -> Mutant:
    where = f"{module}:{node.name}"
    try:
        (link,) = (ast.literal_eval(argument) for argument in mark.args)
        given = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in mark.keywords}
    except ValueError:
        raise ValueError(f"{where}: @fault takes one link and keywords, all of them literals") from None
    told = ast.get_docstring(node)
    if not told:
        raise ValueError(f"{where}: a docstring says what is wrong")
    framework = module.split("_")[1] if module.startswith("adapter_") else "reference"
    return Mutant(f"tests.mutants.{where}", framework, " ".join(told.split()), link, **given)


def markdown(listed: Iterable[Mutant]) -> str:
    """Every mutant in a table a family: what is wrong, in which framework, the bug, and the clauses about it."""
    listed = list(listed)
    lines = [
        "# Mutants",
        "",
        f"{len(listed)} faults, each of which brings a real bug back. `conformance self mutants CLASS` runs one and",
        "`python -m pytest --framework=tests.mutants.MODULE:CLASS` shows what the suites say of it.",
    ]
    for family in sorted({mutant.family for mutant in listed}):
        lines += ["", f"## {family}", "", "| mutant | of | component | what is wrong | must be caught by |"]
        lines.append("|---|---|---|---|---|")
        for m in (m for m in listed if m.family == family):
            clauses = ", ".join(f"[{clause}](clauses.md#{clause})" for clause in m.clauses)
            fault = m.fault.replace("|", "\\|")
            lines.append(f"| {m.label} | {m.framework} | {m.component} | {fault} ([bug]({m.link})) | {clauses} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page of every mutant."""
    return markdown(mutants())
