"""Reads the curves of a run from the files that training programs write."""

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import numpy.typing as npt

from results.record.files import MAX_BYTES, RecordError

Numbers = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

ALIASES: Mapping[str, tuple[str, ...]] = {
    "step": ("step", "global_step", "iteration", "iter", "_step"),
    "loss": ("loss", "train_loss", "train/loss", "train_loss_step", "training_loss", "loss/train", "lm loss"),
    "gradient_norm": ("gradient_norm", "grad_norm", "train/grad_norm", "gradient norm", "grad-norm", "gnorm"),
    "clipped_norm": ("clipped_norm",),
    "learning_rate": ("learning_rate", "lr", "train/learning_rate", "train/lr", "learning rate", "learning-rate"),
    "loss_scale": ("loss_scale", "scale", "loss scale", "loss-scale", "train/loss_scale"),
    "skipped": ("skipped",),
    "batch": ("batch",),
}
"""Names of series, and what training programs call them."""
CHUNK = 50_000
"""Rows that are in memory as text at a time."""
SAMPLE = 10_000
"""Values whose printed digits are counted."""
DISTINCT = 5
"""Number of values from which on their decimals are the printer's; fewer may be round by chance, as rates are."""
MOST_DECIMALS = 7
"""Largest number of printed decimals that is a printer's choice, and not all digits of a float."""


@dataclass(frozen=True)
class Series:
    """One number by step.

    Attributes:
        steps: ascending step numbers, each once.
        values: (len(steps),), with NaN and infinities as the run logged them.
        quantum: unit of the last printed decimal, 0 where values are printed in full.
    """

    steps: Steps
    values: Numbers
    quantum: float = 0.0


@dataclass(frozen=True)
class Curve:
    """The curves of one run.

    Attributes:
        series: by name.
        batches: checksum of the batch, by step.
        format: format of matrix products, "" if the file does not say it.
        versions: packages and their versions.
        notes: what was left out, in one line each.
    """

    path: Path
    series: Mapping[str, Series]
    batches: Mapping[int, str] = field(default_factory=dict)
    format: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass
class _Columns:
    """Collects values by series name."""

    steps: dict[str, list[Steps]] = field(default_factory=dict)
    values: dict[str, list[Numbers]] = field(default_factory=dict)
    decimals: dict[str, list[str]] = field(default_factory=dict)
    batches: dict[int, str] = field(default_factory=dict)

    def add(self, name: str, steps: Steps, texts: Sequence[Any]) -> None:
        """Add a column; rows without a value are left out, and a column that holds a text is."""
        if None in texts or "" in texts:
            known = [index for index, text in enumerate(texts) if text not in (None, "")]
            steps, texts = steps[known], [texts[index] for index in known]
        if not texts:
            return
        if name == "batch":
            self.batches.update(zip(map(int, steps), map(str, texts), strict=True))
            return
        try:
            values = np.fromiter(map(float, texts), np.float64, len(texts))
        except (TypeError, ValueError):
            return
        sample = self.decimals.setdefault(name, [])
        sample += [str(text) for text in texts[: SAMPLE - len(sample)]]
        self.steps.setdefault(name, []).append(steps)
        self.values.setdefault(name, []).append(values)

    def curve(self, path: Path, **attributes: Any) -> Curve:
        """Return the curve: ascending steps, and of a repeated step the last value."""
        series, repeated = {}, 0
        for name, parts in self.steps.items():
            steps, values = np.concatenate(parts), np.concatenate(self.values[name])
            if np.any(np.diff(steps) <= 0):
                unique, last = np.unique(steps[::-1], return_index=True)
                repeated = max(repeated, len(steps) - len(unique))
                steps, values = unique, values[::-1][last]
            series[name] = Series(steps, values, _quantum(self.decimals[name]))
        if not series:
            raise RecordError(path, "has no column of numbers", "name a file with losses by step")
        notes = (f"{path}: {repeated} steps are repeated, and the last value of each counts",) if repeated else ()
        return Curve(path, series, self.batches, notes=notes, **attributes)


def _quantum(texts: Sequence[str]) -> float:
    """Return the unit of the last decimal if all values are printed with few decimals, else 0."""
    digits = [text.partition(".")[2] for text in set(texts) if text.lower() not in ("nan", "inf", "-inf", "infinity")]
    longest = max(map(len, digits), default=0)
    if len(digits) < DISTINCT or not 0 < longest <= MOST_DECIMALS or any("e" in text.lower() for text in texts):
        return 0.0
    return 10.0**-longest


def series_name(column: str) -> str:
    """Return the name of the series of a column."""
    lower = column.strip().lower()
    return next((name for name, aliases in ALIASES.items() if lower in aliases), column.strip())


def read_curve(path: Path, columns: Mapping[str, str] | None = None) -> Curve:
    """Read a run: JSON lines, CSV, lines of numbers, trainer_state.json, or a folder of TensorBoard's event files.

    Args:
        columns: column or tag by series name, for files whose names are not in `ALIASES`.

    Raises:
        RecordError: the file cannot be read, or has no curve.
    """
    claims = dict(columns or {})

    def rename(column: str) -> str:
        """Return the name of a column's series; of two columns with one name the second keeps its own."""
        name = next((name for name, claim in claims.items() if claim == column), series_name(column))
        if claims.setdefault(name, column) == column:
            return name
        return f"column {column}" if column in claims else column

    try:
        size = sum(file.stat().st_size for file in path.iterdir()) if path.is_dir() else path.stat().st_size
        if size > MAX_BYTES:
            thinner = f"keep every {math.ceil(size / MAX_BYTES)}th step"
            raise RecordError(path, f"is {size >> 20} MiB, and more than {MAX_BYTES >> 20} MiB is not read", thinner)
        if path.is_dir() or "tfevents" in path.name:
            curve = _read_events(path, rename)
        elif path.suffix == ".json":
            curve = _read_state(path, rename)
        else:
            with path.open(encoding="utf-8", newline="") as file:
                head = file.read(1)
                file.seek(0)
                curve = _read_lines(path, file, rename) if head == "{" else _read_table(path, file, rename)
    except FileNotFoundError:
        raise RecordError(path, "no such file", "name the file or folder of a run") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecordError(path, f"cannot be read ({error})", "name the file or folder of a run") from None
    if missing := [column for name, column in (columns or {}).items() if name not in curve.series]:
        raise RecordError(path, f"has no column {missing[0]!r}", f"it has {', '.join(curve.series)}")
    return curve


def _read_lines(path: Path, lines: Iterable[str], rename: Callable[[str], str]) -> Curve:
    """Read JSON lines; a broken last line is that of a run that was killed."""
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    iterator, columns, header, count = iter(lines), _Columns(), {}, 0
    while texts := list(islice(iterator, CHUNK)):
        entries = []
        for number, text in enumerate(texts, start=count + 1):
            try:
                entries.append(decode(text))
            except msgspec.DecodeError as error:
                entry = _decode_loosely(text)
                if isinstance(entry, dict):
                    entries.append(entry)
                elif text.strip() and text.endswith("\n"):
                    raise RecordError(f"{path}, line {number}", f"is no JSON object ({error})", "fix it") from None
        if not count and entries and "curve" in entries[0]:
            header = entries.pop(0)
        _add_rows(columns, entries, rename, count)
        count += len(texts)
    versions = {str(name): str(version) for name, version in dict(header.get("versions") or {}).items()}
    return columns.curve(path, format=str(header.get("format") or ""), versions=versions)


def _decode_loosely(text: str | bytes) -> Any:
    """Return the value of JSON with NaN and Infinity, which JSON does not have, None for none."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _add_rows(
    columns: _Columns, entries: Sequence[Mapping[str, Any]], rename: Callable[[str], str], start: int = 0
) -> None:
    """Add entries; those of a file without steps are counted from `start`."""
    names = dict.fromkeys(name for entry in entries for name in entry)
    counter = next((name for name in names if rename(name) == "step"), None)
    if counter is None:
        counts = np.arange(start, start + len(entries), dtype=np.int64)
    else:
        entries = [entry for entry in entries if _is_step(entry.get(counter))]
        counts = np.array([entry[counter] for entry in entries], dtype=np.int64)
    for name in names:
        if name != counter:
            columns.add(rename(name), counts, [entry.get(name) for entry in entries])


def _is_step(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _read_state(path: Path, rename: Callable[[str], str]) -> Curve:
    """Read transformers' trainer_state.json, or a list of entries."""
    document = _decode_loosely(path.read_bytes())
    entries = document.get("log_history") if isinstance(document, dict) else document
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise RecordError(path, "has no log_history, as trainer_state.json has", "name another file")
    columns = _Columns()
    _add_rows(columns, [entry for entry in entries if "train_runtime" not in entry], rename)
    return columns.curve(path)


def _read_table(path: Path, file: IO[str], rename: Callable[[str], str]) -> Curve:
    """Read CSV with a header, or lines of numbers whose header, if any, is a comment, as in torchtitan's files."""
    names: list[str] = []
    first = ""
    for first in file:
        if first.startswith("#"):
            names = re.split(r"[,\s]+", first.lstrip("# ").strip())
        elif first.strip():
            break
    if not first.strip() or first.startswith("#"):
        raise RecordError(path, "has no rows", "name the file of a run that logged")
    delimiter = next((mark for mark in ",;\t" if mark in first), " ")
    cells = next(csv.reader([first], delimiter=delimiter, skipinitialspace=True))
    if any(_is_text(cell) for cell in cells):
        names, rest = cells, list[str]()
    else:
        rest = [first]
        if len(names) != len(cells):
            names = ["step", "loss", *(f"column {index}" for index in range(3, len(cells) + 1))][: len(cells)]
    columns, count = _Columns(), 0
    counter = next((index for index, name in enumerate(names) if rename(name) == "step"), None)
    for chunk in _chunks(csv.reader(chain(rest, file), delimiter=delimiter, skipinitialspace=True)):
        rows = [row for row in chunk if len(row) == len(names)]
        table = list(zip(*rows, strict=True))
        if not table:
            continue
        if counter is None:
            steps = np.arange(count, count + len(rows), dtype=np.int64)
        else:
            try:
                steps = np.fromiter(map(int, map(float, table[counter])), np.int64, len(rows))
            except (OverflowError, ValueError):
                raise RecordError(path, f"column {names[counter]!r} has a step that is no number", "fix it") from None
        count += len(rows)
        for index, texts in enumerate(table):
            if index != counter:
                columns.add(rename(names[index]), steps, texts)
    return columns.curve(path)


def _is_text(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return True
    return False


def _chunks(rows: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    while chunk := list(islice(rows, CHUNK)):
        yield chunk


def _read_events(path: Path, rename: Callable[[str], str]) -> Curve:
    """Read TensorBoard's event files of one run by TensorBoard's own reader."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ModuleNotFoundError:
        raise RecordError(path, "needs TensorBoard's reader", "pip install tensorboard") from None
    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags, columns = events.Tags(), _Columns()
    for tag in tags["scalars"]:
        points = events.Scalars(tag)
        columns.add(rename(tag), np.array([p.step for p in points], dtype=np.int64), [p.value for p in points])
    for tag in tags["tensors"]:
        points = [(p.step, make_ndarray(p.tensor_proto)) for p in events.Tensors(tag)]
        if points and all(array.ndim == 0 and array.dtype.kind in "fiu" for _, array in points):
            values = [float(array) for _, array in points]
            columns.add(rename(tag), np.array([step for step, _ in points], dtype=np.int64), values)
    return columns.curve(path)
