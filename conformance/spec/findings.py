"""Findings as data: one cause of known failures each, its class and consequence, where it is to be read of, and a
program that shows it with the framework alone."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from typing import Literal, cast, get_args

from conformance.spec.tables import Kind, Table
from results.record.texts import Consequence, FindingKind, FindingText

NONE_FOUND = "none found"
"""What stands for the link where no thread, change or page says it."""

PROGRAMS = "findings"
"""The folder of programs beside the file."""

FINDING = Kind(
    "id", frozenset({"id", "class", "consequence", "reason", "link", "link_shows", "needs", "device", "processor"})
)


ANY = "*"
"""The device, mode or processor of an entry that means every one."""

PROCESSOR = re.compile(r"\*|-?\w+(?:, -?\w+)*")
"""Instruction sets that an entry's processor has, or with "-" lacks."""


def named(words: str, name: str) -> bool:
    """Whether an entry's device or mode means one of this name: a name, several with commas, or "*" for every one."""
    return words == ANY or name in words.split(", ")


def matched(words: str, instructions: Collection[str]) -> bool:
    """Whether an entry's processor is one that offers these instruction sets."""
    listed = [] if words == ANY else words.split(", ")
    return all((word in instructions) if word[0] != "-" else (word[1:] not in instructions) for word in listed)


WORKAROUND = Kind("finding", frozenset({"finding", "kind", "module", "does", "mode"}))
WorkaroundKind = Literal["call", "check", "state"]
_MEANT = {FindingKind.NUMERICS: Consequence.LAST_BITS, FindingKind.LIMITATION: Consequence.ERROR}
"""Classes that have one consequence by what they mean."""
_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_LINK = re.compile(r"https?://\S+")


@dataclass(frozen=True)
class Finding:
    """One cause of known failures of a framework.

    Attributes:
        id: its slug; `PROGRAMS/SLUG.py`, hyphens as underscores, is its program.
        text: class, consequence, reason and link.
        program: what shows it with the framework alone, None without one.
        needs: top-level modules besides the framework's own that it rests on, and that need not be installed.
        processor: instruction sets of the processors that show it, or with "-" those that they lack, such as
            "avx2, -avx512f"; "*" for every processor.
        device: the device that shows it, "cpu" or "cuda"; "*" for every one.
    """

    id: str
    framework: str
    text: FindingText
    program: Traversable | None = None
    needs: tuple[str, ...] = ()
    processor: str = ANY
    device: str = ANY

    def lacking(self) -> tuple[str, ...]:
        """Which of these modules are not there."""
        return tuple(name for name in self.needs if find_spec(name) is None)

    def not_here(self, devices: Collection[str], instructions: Collection[str]) -> str:
        """Why its program shows nothing on a machine of such devices and instruction sets; "" if it may."""
        if lacking := self.lacking():
            return f"{', '.join(lacking)} is not installed"
        if not matched(self.processor, instructions):
            return f"it shows on processors with {self.processor}"
        return "" if any(named(self.device, device) for device in devices) else f"it shows on {self.device}"


@dataclass(frozen=True)
class Workaround:
    """Where an adapter does something else than its framework's documentation tells a user to do.

    Attributes:
        finding: what a user meets who does it the plain way; its program does it that way.
        kind: "call": it does more or other; "check": it refuses where the framework is silent; "state": it saves by
            hand what the framework's own call forgets.
        module: file of the adapter.
        does: what it does instead, in one sentence.
        mode: the mode in which it does, "*" for all.
    """

    finding: Finding
    kind: WorkaroundKind
    module: str
    does: str
    mode: str


def read_finding(table: Table, framework: str, folder: Traversable) -> Finding:
    """The finding that a table says, with its program where the folder has one.

    Raises:
        ValueError: it says none, its class has another consequence, or a defect has no program.
    """
    name = table.text("id")
    if not _ID.fullmatch(name):
        raise ValueError(f"{table.where}: the id is not a slug in lower case with hyphens")
    program = folder.joinpath(PROGRAMS, f"{name.replace('-', '_')}.py")
    link = table.text("link")
    if link != NONE_FOUND and not _LINK.fullmatch(link):
        raise ValueError(f"{table.where}: link {link!r} is neither an address nor {NONE_FOUND!r}")
    if (link == NONE_FOUND) == ("link_shows" in table.values):
        raise ValueError(f"{table.where}: link_shows says what an address shows; it stands with an address alone")
    text = FindingText(
        kind=table.choice("class", FindingKind),
        consequence=table.choice("consequence", Consequence),
        reason=table.text("reason"),
        link=link,
        link_shows="" if link == NONE_FOUND else table.text("link_shows"),
    )
    if text.consequence is not (meant := _MEANT.get(text.kind, text.consequence)):
        raise ValueError(f"{table.where}: the consequence of the class {text.kind} is {meant}, not {text.consequence}")
    if text.kind is FindingKind.DEFECT and not program.is_file():
        raise ValueError(f"{table.where}: a defect needs a program that shows it, {PROGRAMS}/{program.name}")
    shown_by = program if program.is_file() else None
    device = table.text("device", ANY)
    if device not in (ANY, "cpu", "cuda"):
        raise ValueError(f"{table.where}: device {device!r} is neither 'cpu' nor 'cuda'")
    return Finding(name, framework, text, shown_by, table.texts("needs"), read_processor(table), device)


def read_processor(table: Table) -> str:
    """The processors that a table means.

    Raises:
        ValueError: they are not given as a list of instruction sets.
    """
    words = table.text("processor", ANY)
    if not PROCESSOR.fullmatch(words):
        raise ValueError(f"{table.where}: processor {words!r} is not a list such as 'avx2, -avx512f', or '*'")
    return words


def read_workaround(table: Table, findings: dict[str, Finding], folder: Traversable) -> Workaround:
    """The workaround that a table says.

    Raises:
        ValueError: it says none, names an unknown finding or one without a program, or a file that is not there.
    """
    finding, kind, module = found(table, findings), table.text("kind"), table.text("module")
    if kind not in get_args(WorkaroundKind):
        raise ValueError(f"{table.where}: kind {kind!r} is none of {', '.join(get_args(WorkaroundKind))}")
    if finding.program is None:
        raise ValueError(f"{table.where}: the finding has no program that does it the plain way")
    if not folder.joinpath(module).is_file():
        raise ValueError(f"{table.where}: there is no module {module!r} beside the file")
    return Workaround(finding, cast(WorkaroundKind, kind), module, table.text("does"), table.text("mode", "*"))


def found(table: Table, findings: dict[str, Finding]) -> Finding:
    """The finding that a table names under `finding`.

    Raises:
        ValueError: the file has no such finding.
    """
    name = table.text("finding")
    if name not in findings:
        raise ValueError(f"{table.where}: there is no finding {name!r} in this file")
    return findings[name]
