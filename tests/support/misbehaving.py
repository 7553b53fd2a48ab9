"""Twins of the reference that misbehave as a framework may, and texts that strangers put into records."""

import json
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.contract import Attempt, Capability, Declaration, Unsupported
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer
from results.record.files import MAX_BYTES
from results.record.reading import MAX_SIGNS, to_json
from tests.support.recorded import BASE, CLAUSE
from tests.support.suite_runs import Ended


class Unnamed(ReferenceFramework):
    """Has no version."""

    def version(self) -> str:
        raise ZeroDivisionError("no version")


class Leaky(ReferenceFramework):
    """Every new trainer leaves a process-wide counter changed."""

    trainers: ClassVar[int] = 0

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        type(self).trainers += 1
        return super().trainer(model, recipe, weights)

    def global_state(self) -> dict[str, str]:
        return {**super().global_state(), "trainers": str(self.trainers)}

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        super().restore_global_state(state)
        type(self).trainers = int(state["trainers"])


class Refusing(ReferenceFramework):
    """Declares that it does not clip, and refuses schedules that it declares to follow."""

    def declares(self, capability: Capability) -> Declaration:
        if capability is Capability.CLIP:
            return Declaration(False, "gradients are never clipped here")
        return super().declares(capability)

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {**super().attempts(), Capability.CLIP: bool}

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        if recipe.schedule is not None:
            raise Unsupported(Capability.SCHEDULE, "schedules are not followed after all")
        return super().trainer(model, recipe, weights)


class Restless(ReferenceFramework):
    """No two of its runs begin with the same weights."""

    _runs = 0

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        self._runs += 1
        initial_weights = model.weights(recipe.seed) if weights is None else weights
        factor = 1.0 + self._runs / 1024.0
        moved = {name: (value * factor).astype(value.dtype) for name, value in initial_weights.items()}
        return super().trainer(model, recipe, moved)


class AbortingAtOnce(ReferenceFramework):
    """Making a trainer takes the interpreter with it."""

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        os.abort()


class Flaky(ReferenceFramework):
    """Is wrong in the first run that asks it, and right in later ones; the file that FLAKY names remembers that one."""

    def steady(self) -> bool:
        """Whether this process belongs to another run than the first."""
        path = Path(os.environ["FLAKY"])
        if not path.exists():
            path.write_text(str(os.getppid()))
        return path.read_text() != str(os.getppid())


VALUES: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], {"": {}}, [None] * 40, 0, 1, -1, 0.5, 1e308, 2**63, 2**1023 - 1, 10**400),
    *("", " ", "1", "null", "inf", "nan", "complete", "interrupted", "pass", "crash", "MUST", "a/b", "x" * 20_000),
    *(CLAUSE, f"{CLAUSE}\n", "autocast.op-dtypes", "test_a[1]", "2026-01-02T03:04:05Z", "9999-99-99T99:99:99Z"),
    *("\n", "\x00", "\x1b[2J\x1b]0;x\x07", "\x9b31m", "\u202eabc", "[bold]x[/]", "{{ 7*7 }}", "%s {0}", "::error::e"),
    *("<script>alert(1)</script>", "` | ** _ #1 @you", "javascript:alert(1)", "http://[::1", "../../etc/passwd"),
)
PIECES = (
    *(b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\n", b'"', b"\\", b"\\ud800", b"{", b"}", b"[", b"]"),
    *(b",", b":", b"-", b"0", b"NaN", b"Infinity", b"1e400", b"null", b"9" * 400, b"\x1b[2J", b"[" * 5000),
)


def assert_refused(result: Ended, path: Path) -> None:
    """Asserts that a command says in one line which file is at fault, and nothing else."""
    assert (result.status, result.output) == (2, "")
    assert result.errors.endswith("\n")
    assert result.errors[:-1].isprintable(), result.errors
    assert str(path) in result.errors


def mutants(record: bytes, journal: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Damaged copies of a record and of a journal: file ending and content; the same for the same seed."""
    rng = random.Random(seed)
    for number in range(count):
        content, ending = (record, ".json") if number % 2 else (journal, ".jsonl")
        if number % 3 == 0:
            yield ending, _with_other_bytes(content, rng)
        elif ending == ".json":
            yield ending, json.dumps(_with_other_nodes(json.loads(content), rng)).encode()
        else:
            lines = _with_other_nodes([json.loads(line) for line in content.splitlines()], rng)
            yield ending, "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def _with_other_bytes(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content))
    stop = rng.choice((start, start + 1, start + 8, rng.randrange(start, len(content))))
    piece = rng.choice((b"", b"", rng.randbytes(4), content[start:stop] * 2, *PIECES))
    return content[:start] + piece + content[stop:] if rng.random() < 0.9 else content[:start]


def _with_other_nodes(document: Any, rng: random.Random) -> Any:
    for _ in range(rng.choice((1, 1, 2))):
        nodes = list(_nodes(document))
        parent, key = rng.choice(nodes)
        alike = [value for value in VALUES if type(value) is type(parent[key])]
        value = rng.choice(alike if alike and rng.random() < 0.7 else VALUES)
        match rng.randrange(5):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent["extra"] = parent.pop(key)
            case 2 if isinstance(parent, list):
                parent.append(parent[key])
            case _:
                parent[key] = value
    return document


def _nodes(parent: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(parent) if isinstance(parent, dict) else range(len(parent)):
        yield parent, key
        if isinstance(parent[key], dict | list):
            yield from _nodes(parent[key])


def _fill_template(template: str, piece: str, count: int = MAX_BYTES, around: str = "[]") -> bytes:
    """A record with up to `count` pieces in place of HOLE, as many as a file has room for; "#" becomes a number."""
    before, after = template.split('"HOLE"')
    count = min(count, (MAX_BYTES - len(template)) // (len(piece.replace("#", "0" * 8)) + 1))
    pieces = ",".join(piece.replace("#", f"{number:08d}") for number in range(count))
    return f"{before}{around[:1]}{pieces}{around[1:]}{after}".encode()


_DOCUMENT = json.loads(to_json(BASE))
_VALUE = json.dumps({**_DOCUMENT, "observations": [{"clause": CLAUSE, "key": "k", "case": "", "value": "HOLE"}]})
_VERDICT = f'{{"test":"{CLAUSE}/#","clause":"{CLAUSE}","outcome":"pass"}}'
_CHECK = '{"what":"w","measured":1,"bound":1,"expected":1,"passed":true}'
_CHECKS = json.dumps({**_DOCUMENT, "verdicts": [{**json.loads(_VERDICT), "checks": "HOLE"}]})
_LINE = '{"at":1,"kind":"judged","judged":{"verdict":' + _VERDICT + "}}\n"

OVERSIZED: dict[str, Callable[[], bytes]] = {
    "empty lists": lambda: _fill_template(_VALUE, "[]"),
    "many keys": lambda: _fill_template(_VALUE, '"#":1', MAX_SIGNS // 3, "{}"),
    "many verdicts": lambda: _fill_template(json.dumps({**_DOCUMENT, "verdicts": "HOLE"}), _VERDICT, MAX_SIGNS // 8),
    "many checks": lambda: _fill_template(_CHECKS, _CHECK, MAX_SIGNS // 12),
    "long numbers": lambda: _fill_template(_VALUE, "9" * 4000),
    "one escaped text": lambda: _fill_template(_VALUE, r"\u0001" * (MAX_BYTES // 7), 1, '""'),
    "brackets alone": lambda: b"[" * MAX_BYTES,
    "journal of many verdicts": lambda: "".join(
        _LINE.replace("#", f"{number:08d}") for number in range(MAX_SIGNS // 18)
    ).encode(),
}
"""Files that cost as much to read as their size allows, by name."""
