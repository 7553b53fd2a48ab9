"""Committed samples: a JSON file for each framework, with one row of samples in a line for readable diffs."""

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
    """Provenance of samples.

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
        """Framework, version and place, for tables."""
        return f"{self.framework} {self.version}, {self.place}"

    @property
    def taken(self) -> str:
        """When and where, for the lines below tables."""
        return f"{self.framework}: {self.started}; {self.machine}"


@dataclass(frozen=True)
class Store(Generic[T]):
    """The committed samples of one benchmark.

    Attributes:
        folder: folder of the files.
        kind: class of a file's content.
        rows: the field whose items are written one in a line.
    """

    folder: Path
    kind: type[T]
    rows: str

    def path(self, name: str) -> Path:
        """The file of that name."""
        return self.folder / f"{name}.json"

    def save(self, samples: T, name: str) -> None:
        """Writes a file, with the rows last."""
        document: dict[str, Any] = asdict(samples)
        rows = document.pop(self.rows)
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(f'{json.dumps(document)[:-1]}, "{self.rows}": [\n{lines}\n]}}\n', "utf-8")

    def load(self, name: str) -> T:
        """Reads a file.

        Raises:
            ValueError: it has no valid samples; the message names it.
            OSError: it cannot be read.
        """
        try:
            return msgspec.json.decode(self.path(name).read_bytes(), type=self.kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{name}.json has no valid samples: {error}") from error

    def all(self) -> list[T]:
        """Every file's samples, by name.

        Raises:
            ValueError: a file has no valid samples.
            OSError: it cannot be read.
        """
        return [self.load(path.stem) for path in sorted(self.folder.glob("*.json"))]
