"""What the rest of the suite asks of a technique: one object for each, next to its rules, checks and cases."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from pathlib import Path

from conformance.search.properties import Property
from fixtures.recipe import Recipe


@dataclass(frozen=True)
class Technique:
    """One technique.

    Attributes:
        recipes: one for each capability that a recipe of the technique needs.
        rows: its rows in tables of results, by the parameter that names a test's subject: what the row is about.
        clauses: the row of clauses whose tests name no subject, by pattern of their ids.
        properties: what generated cases must have, by clause.
        breaks: clauses to which a failure of a generated case is attributed.
        features: words of generated cases, of which coverage names those that were never drawn.
        places: classes of the reference that faults replace, each with the attribute that names it and its owner.
    """

    recipes: tuple[Recipe, ...] = ()
    rows: Mapping[str, str] = field(default_factory=dict)
    clauses: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, Property] = field(default_factory=dict)
    breaks: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    places: Mapping[type, tuple[str, type]] = field(default_factory=dict)

    def row_of(self, clause: str) -> str:
        """The row of a clause, "" if its tests name one or it is another technique's."""
        return next((row for pattern, row in self.clauses.items() if fnmatchcase(clause, pattern)), "")


@cache
def load_techniques() -> tuple[Technique, ...]:
    """Every technique: the objects in the modules next to this one."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    modules = [import_module(f"{__package__}.{name}") for name in names]
    return tuple(value for module in modules for value in vars(module).values() if isinstance(value, Technique))
