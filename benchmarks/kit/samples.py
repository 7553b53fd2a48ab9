"""Committed samples: a JSON file for each framework, one row of samples a line, so that changes can be read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)
else:
    T = TypeVar("T")


@dataclass(frozen=True)
class Origin:
    """Of what, where and when samples were taken.

    Attributes:
        place: device and mode.
        machine: processor, cores and library versions.
        started: ISO 8601.
    """

    framework: str
    version: str
    place: str
    machine: str
    started: str

    @property
    def label(self) -> str:
        """Framework, version and place, as tables name them."""
        return f"{self.framework} {self.version}, {self.place}"

    @property
    def taken(self) -> str:
        """When and where, as the lines below tables say it."""
        return f"{self.framework}: {self.started}; {self.machine}"


@dataclass(frozen=True)
class Store(Generic[T]):
    """The committed samples of one benchmark.

    Attributes:
        folder: where the files are.
        kind: what a file is read as.
        rows: the field whose items stand one a line.
    """

    folder: Path
    kind: type[T]
    rows: str

    def path(self, name: str) -> Path:
        """The file of that name."""
        return self.folder / f"{name}.json"

    def save(self, samples: T, name: str) -> None:
        """Writes a file, whose rows go last."""
        document: dict[str, Any] = asdict(samples)
        rows = document.pop(self.rows)
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(f'{json.dumps(document)[:-1]}, "{self.rows}": [\n{lines}\n]}}\n', "utf-8")

    def load(self, name: str) -> T:
        """Reads a file.

        Raises:
            ValueError: it holds no such samples; the message names it.
            OSError: it cannot be read.
        """
        try:
            return msgspec.json.decode(self.path(name).read_bytes(), type=self.kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{name}.json holds no samples: {error}") from error

    def all(self) -> list[T]:
        """Every file's samples, by name.

        Raises:
            ValueError: a file holds none.
            OSError: it cannot be read.
        """
        return [self.load(path.stem) for path in sorted(self.folder.glob("*.json"))]
