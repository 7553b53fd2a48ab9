"""Findings as data: causes of known failures, each with class, consequence, link, and a reproducer that uses only the
framework."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from typing import Literal, cast, get_args

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from conformance.spec.clauses import Kind, Table
from results.record.values import Consequence, FindingKind, FindingText

NO_LINK = "none found"
"""Link of a finding without an upstream thread, change or page."""

PROGRAMS = "findings"
"""Folder of reproducers next to the file."""

WORKAROUND, EXCLUSION = "workaround", "exclusion"
"""Names of the tables inside a finding's table."""

FINDING = Kind(
    "id",
    frozenset({"id", "class", "consequence", "reason", "link", "link_shows", "needs", "device", "processor", "causes"})
    | {"clauses", "spoils_process", "versions", WORKAROUND, EXCLUSION},
)

ANY = "*"
"""Stands for any device, mode or processor."""

PROCESSOR = re.compile(r"\*|-?\w+(?:\|\w+)*(?:, -?\w+(?:\|\w+)*)*")
"""Syntax of a processor: instruction sets that it has, with "-" those that it lacks; "a|b": either, "-a|b": neither."""
_WORKAROUND = frozenset({"kind", "module", "does", "mode"})
WorkaroundKind = Literal["call", "check", "state"]
_MEANT = {FindingKind.NUMERICS: Consequence.LAST_BITS, FindingKind.LIMITATION: Consequence.ERROR}
"""Consequences that a class of findings implies."""
_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_LINK = re.compile(r"https?://\S+")


def has_name(names: str, name: str) -> bool:
    """Return whether an entry's device or mode (a name, several with commas, or "*") includes this name."""
    return names == ANY or name in names.split(", ")


def has_instruction_sets(processor: str, instructions: Collection[str]) -> bool:
    """Return whether an entry's processor has these instruction sets."""

    def has(names: str) -> bool:
        return any(name in instructions for name in names.split("|"))

    listed = [] if processor == ANY else processor.split(", ")
    return all(not has(names[1:]) if names.startswith("-") else has(names) for names in listed)


@dataclass(frozen=True)
class Finding:
    """One cause of known failures of a framework.

    Attributes:
        id: its slug; `PROGRAMS/SLUG.py` or `PROGRAMS/FOLDER/SLUG.py`, hyphens as underscores, is its program.
        text: class, consequence, reason and link.
        program: a reproducer that uses only the framework, or None.
        needs: optional top-level modules that it needs in addition to the framework's own.
        processor: instruction sets of affected processors, or with "-" those that they lack, such as
            "avx2, -avx512f"; "*" for every processor.
        device: the affected device, "cpu" or "cuda"; "*" for all.
        spoils_process: whether its failures affect later tests in the same process; such tests run last.
        clauses: clauses whose tests all fail in a mode that nobody has judged, whatever their parameters.
        versions: PEP 440 specifiers of versions that show it on every device that nobody has judged; "" for none.
        causes: messages of `conformance judge-model` about model failures that it causes, with "*" for any words.
    """

    id: str
    framework: str
    text: FindingText
    program: Traversable | None = None
    needs: tuple[str, ...] = ()
    processor: str = ANY
    device: str = ANY
    causes: tuple[str, ...] = ()
    spoils_process: bool = False
    clauses: tuple[str, ...] = ()
    versions: str = ""

    def affects(self, version: Version) -> bool:
        """Return whether `versions`, which is written by hand, includes a version; pre-releases count."""
        return self.versions != "" and SpecifierSet(self.versions).contains(version, prereleases=True)

    def lacking(self) -> tuple[str, ...]:
        """Needed modules that are not installed."""
        return tuple(name for name in self.needs if find_spec(name) is None)

    def not_here(self, devices: Collection[str], instructions: Collection[str]) -> str:
        """Return why its program cannot reproduce it on such devices and instruction sets; "" if it can."""
        if lacking := self.lacking():
            return f"{', '.join(lacking)} is not installed"
        if not has_instruction_sets(self.processor, instructions):
            return f"it needs a processor with {self.processor}"
        return "" if any(has_name(self.device, device) for device in devices) else f"it needs device {self.device}"


@dataclass(frozen=True)
class Workaround:
    """A deviation of an adapter from its framework's documented usage.

    Attributes:
        finding: the defect that the documented usage has; its program uses the documented calls.
        kind: "call": the adapter makes more or other calls; "check": it refuses where the framework is silent;
            "state": it saves state by hand that the framework's own call omits.
        module: file of the adapter.
        does: description of the workaround, in one sentence.
        mode: the modes that run the finding's program (several with commas), "" for the framework's default mode.
    """

    finding: Finding
    kind: WorkaroundKind
    module: str
    does: str
    mode: str


def read_finding(table: Table, framework: str, programs: Mapping[str, Traversable]) -> Finding:
    """Return the finding of a table, with its program if there is one.

    Raises:
        ValueError: it is invalid, its class implies another consequence, or a defect has no program.
    """
    name = table.text("id")
    if not _ID.fullmatch(name):
        raise ValueError(f"{table.where}: the id is not a slug in lower case with hyphens")
    program = programs.get(f"{name.replace('-', '_')}.py")
    link = table.text("link")
    if link != NO_LINK and not _LINK.fullmatch(link):
        raise ValueError(f"{table.where}: link: got {link!r}, want an address or {NO_LINK!r}")
    if (link == NO_LINK) == ("link_shows" in table.values):
        raise ValueError(f"{table.where}: link_shows needs a link that is an address")
    text = FindingText(
        kind=table.choice("class", FindingKind),
        consequence=table.choice("consequence", Consequence),
        reason=table.text("reason"),
        link=link,
        link_shows="" if link == NO_LINK else table.text("link_shows"),
    )
    if text.consequence is not (meant := _MEANT.get(text.kind, text.consequence)):
        raise ValueError(f"{table.where}: the consequence of the class {text.kind} is {meant}, not {text.consequence}")
    if text.kind is FindingKind.DEFECT and program is None:
        raise ValueError(
            f"{table.where}: a defect needs a program that shows it, {PROGRAMS}/{name.replace('-', '_')}.py"
        )
    device = table.text("device", ANY)
    if device not in (ANY, "cpu", "cuda"):
        raise ValueError(f"{table.where}: device: got {device!r}, want 'cpu' or 'cuda'")
    return Finding(
        id=name,
        framework=framework,
        text=text,
        program=program,
        needs=table.texts("needs"),
        processor=read_processor(table),
        device=device,
        causes=table.texts("causes"),
        spoils_process=table.flag("spoils_process"),
        clauses=table.texts("clauses"),
        versions=read_versions(table),
    )


def read_programs(folder: Traversable) -> dict[str, Traversable]:
    """Return the programs of an adapter's findings by file name; a name is unique across folders."""
    programs = folder.joinpath(PROGRAMS)
    if not programs.is_dir():
        return {}
    folders = [programs, *(path for path in programs.iterdir() if path.is_dir())]
    return {path.name: path for inner in folders for path in inner.iterdir() if path.name.endswith(".py")}


def read_processor(table: Table) -> str:
    """Return the processors of a table.

    Raises:
        ValueError: they are not given as a list of instruction sets.
    """
    processor = table.text("processor", ANY)
    if not PROCESSOR.fullmatch(processor):
        raise ValueError(f"{table.where}: processor {processor!r} is not a list such as 'avx2, -avx512f', or '*'")
    return processor


def read_versions(table: Table) -> str:
    """Return the versions of a table, "" without any.

    Raises:
        ValueError: the text is not a set of PEP 440 specifiers.
    """
    versions = table.text("versions") if "versions" in table.values else ""
    try:
        SpecifierSet(versions)
    except InvalidSpecifier:
        raise ValueError(f"{table.where}: versions: got {versions!r}, want a PEP 440 specifier") from None
    return versions


def read_workaround(table: Table, finding: Finding, folder: Traversable) -> Workaround | None:
    """Return the workaround inside a finding's table, None without one.

    Raises:
        ValueError: it is invalid, its finding has no program, or its module is missing.
    """
    inner = table.table(WORKAROUND, _WORKAROUND)
    if inner is None:
        return None
    kind, module = inner.text("kind"), inner.text("module")
    if kind not in get_args(WorkaroundKind):
        raise ValueError(f"{inner.where}: kind: got {kind!r}, want one of {', '.join(get_args(WorkaroundKind))}")
    if finding.program is None:
        raise ValueError(f"{inner.where}: the finding has no program that uses the documented calls")
    if not folder.joinpath(module).is_file():
        raise ValueError(f"{inner.where}: no module {module!r} next to the file")
    mode = inner.text("mode") if "mode" in inner.values else ""
    return Workaround(finding, cast(WorkaroundKind, kind), module, inner.text("does"), mode)
