"""The planted faults, read from their source without importing it, and the page of them."""

import ast
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ADAPTERS = "adapters"
"""The package with a module ADAPTER or ADAPTER_PART for each adapter; the other package is the reference's."""


@dataclass(frozen=True)
class Fault:
    """A framework with one fault.

    Attributes:
        name: argument of `--framework`, "tools.faults.PACKAGE.MODULE:CLASS".
        framework: "reference" or an adapter's name.
        text: the error, in one sentence.
        link: the real bug that it brings back, "" for an invented one.
        clauses: the clauses that are about it, each of which must fail.
        raises: the fault shows as an exception of the framework's own.
        mode: the adapter's mode, "" for its first.
        names: text that every failing verdict's message of these clauses must contain, "" for none.
    """

    name: str
    framework: str
    text: str
    link: str
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
        """The framework and the class; no other fault shares them."""
        return f"{self.framework}.{self.label}"

    @property
    def label(self) -> str:
        """The class's name."""
        return self.name.rpartition(":")[2]


def faults(folder: Path = FOLDER) -> tuple[Fault, ...]:
    """Every fault, by module and in the order of the source.

    Raises:
        ValueError: a `fault` decorator is not made of literals, or a fault has no docstring.
    """
    result: list[Fault] = []
    for path in sorted(folder.glob("*/*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and (mark := _mark(node)) is not None:
                result.append(_fault(path.parent.name, path.stem, node, mark))
    return tuple(result)


def _mark(node: ast.ClassDef) -> ast.Call | None:
    for mark in node.decorator_list:
        match mark:
            case ast.Call(func=ast.Name(id="fault")):
                return mark
    return None


def _fault(package: str, module: str, node: ast.ClassDef, mark: ast.Call) -> Fault:
    where = f"{package}.{module}:{node.name}"
    try:
        link, *clauses = (ast.literal_eval(argument) for argument in mark.args)
        options = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in mark.keywords}
    except ValueError:
        raise ValueError(f"{where}: @fault takes a link, clauses and keywords, all of them literals") from None
    docstring = ast.get_docstring(node)
    if not docstring:
        raise ValueError(f"{where}: a docstring says what is wrong")
    framework = module.partition("_")[0] if package == ADAPTERS else "reference"
    return Fault(f"tools.faults.{where}", framework, " ".join(docstring.split()), link, tuple(clauses), **options)


def page() -> str:
    """The page of all faults, a table for each family: the error, the framework, the bug, the clauses about it."""
    listed = faults()
    real = sum(bool(fault.link) for fault in listed)
    lines = [
        "# Faults",
        "",
        f"{len(listed)} faults, {real} of which bring a real bug back. `python -m tools faults CLASS` runs one and",
        "`python -m pytest --framework=tools.faults.reference.FAMILY:CLASS` shows what the suites say of it;",
        "an adapter's faults are in `tools.faults.adapters.ADAPTER`.",
    ]
    for family in sorted({fault.family for fault in listed}):
        lines += ["", f"## {family}", "", "| fault | of | what is wrong | must be caught by |"]
        lines.append("|---|---|---|---|")
        for fault in (fault for fault in listed if fault.family == family):
            clauses = ", ".join(f"[{clause}](clauses.md#{clause})" for clause in fault.clauses)
            text = fault.text.replace("|", "\\|") + (f" ([bug]({fault.link}))" if fault.link else "")
            lines.append(f"| {fault.label} | {fault.framework} | {text} | {clauses} |")
    return "\n".join(lines) + "\n"
