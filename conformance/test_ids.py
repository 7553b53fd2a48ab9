"""The suites' tests, read from source without importing it."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUITES = ROOT / "conformance" / "suites"


@dataclass(frozen=True)
class TestCode:
    """One test function.

    Attributes:
        file: path of the module that defines it, within the suites.
        function: its name, which no other test of the suites has.
        clause: the clause that it names.
        parameters: names of its parameters, both fixtures and parametrized ones.
    """

    __test__ = False
    file: str
    function: str
    clause: str
    parameters: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """CLAUSE/function, which begins the ids of its cases."""
        return f"{self.clause}/{self.function}"


@cache
def inventory() -> dict[str, TestCode]:
    """Every test by its function's name.

    Raises:
        ValueError: as `read_inventory`.
    """
    return read_inventory(ROOT)


def read_inventory(root: Path, clause: str = "") -> dict[str, TestCode]:
    """The tests of a checkout by their functions' names, of all clauses or of one.

    Raises:
        ValueError: a test names no clause, or two functions have the same name.
    """
    tests: dict[str, TestCode] = {}
    for path in sorted((root / "conformance" / "suites").rglob("test_*.py")):
        source = path.read_text("utf-8")
        for node in ast.parse(source).body if clause in source else ():
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                if node.name in tests:
                    other = tests[node.name].file
                    raise ValueError(f"{path.name}: {node.name} is a test of {other} too; rename one of them")
                parameters = tuple(argument.arg for argument in node.args.args)
                file = path.relative_to(root / "conformance" / "suites").as_posix()
                tests[node.name] = TestCode(file, node.name, _clause(path, node), parameters)
    return {name: code for name, code in tests.items() if clause in ("", code.clause)}


def _clause(path: Path, node: ast.FunctionDef) -> str:
    for mark in node.decorator_list:
        match mark:
            case ast.Call(func=ast.Name(id="clause"), args=[ast.Constant(value=str(name))]):
                return name
    raise ValueError(f"{path.name}: {node.name} names no clause")


def code_of(node_id: str) -> TestCode | None:
    """The test of a pytest node id, None if it is not in the suites."""
    path, _, case = node_id.partition("::")
    code = inventory().get(case.partition("[")[0])
    return code if code is not None and f"/{path}".endswith(f"/{code.file}") else None


def id_of(node_id: str) -> str:
    """CLAUSE/function[parameters] for a pytest node id of the suites; any other node id unchanged."""
    code = code_of(node_id)
    return f"{code.clause}/{node_id.partition('::')[2]}" if code else node_id


def node_of(test: str) -> str | None:
    """The pytest node id of a test by its id; None if the suites have no such test now."""
    clause, _, case = test.partition("/")
    code = inventory().get(case.partition("[")[0])
    return f"conformance/suites/{code.file}::{case}" if code is not None and code.clause == clause else None
