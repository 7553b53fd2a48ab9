"""Techniques: for each its expected values, checks and generated cases, and one object for the rest of the suite."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from pathlib import Path

from conformance.search import Property
from fixtures.recipe import Recipe


@dataclass(frozen=True)
class Technique:
    """One technique, as the rest of the suite uses it.

    Attributes:
        recipes: one for each capability that a recipe of the technique needs.
        rows: descriptions of its rows in tables of results, by the parameter that names a test's subject.
        clauses: the row of each clause whose tests name no subject, by pattern of clause ids.
        properties: laws for its generated cases, by clause.
        breaks: clauses to which a failure of a generated case is attributed.
        features: features of its generated cases; coverage lists those that were never drawn.
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
        """Return the row of a clause, "" if its tests name a subject or it is another technique's."""
        return next((row for pattern, row in self.clauses.items() if fnmatchcase(clause, pattern)), "")


@cache
def load_techniques() -> tuple[Technique, ...]:
    """Return every technique: the objects in the modules of this package."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    modules = [import_module(f"{__name__}.{name}") for name in names]
    return tuple(value for module in modules for value in vars(module).values() if isinstance(value, Technique))
