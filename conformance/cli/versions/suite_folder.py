"""The value of `--suite-from`: a folder with the suite's packages."""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path

import click
from packaging.utils import canonicalize_name

from frameworks.installer import locks
from frameworks.installer.resolution import suite_requirements

_EXAMPLES = 3


class SuiteFolder(click.Path):
    """A folder that has every package that the suite needs for a run."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, exists=True, file_okay=False)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The folder; refused without one of the suite's packages."""
        folder = Path(str(super().convert(str(value), param, ctx)))
        there = {canonicalize_name(str(each.name)) for each in distributions(path=[str(folder)])}
        if lacking := sorted(locks.names(suite_requirements()) - there):
            more = f" and {len(lacking) - _EXAMPLES} more" if lacking[_EXAMPLES:] else ""
            named = ", ".join(lacking[:_EXAMPLES])
            self.fail(f"{folder} lacks {named}{more}; name site-packages with the suite's requirements", param, ctx)
        return folder
