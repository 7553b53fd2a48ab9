"""The public callables of namespaces, and programs that call one: with its defaults, or with one change."""

import ast
import enum
import functools
import importlib
import inspect
import itertools
import math
import re
import tomllib
import types
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from results.compare.fingerprints import fill_program

TEXT = 60
"""Number of characters kept of a text."""
_QUOTED = re.compile(r"""(?<![\w])["'`]{1,2}([A-Za-z][\w-]{1,30})["'`]{1,2}""")
_DOC_SIGNATURE = re.compile(r"^\s*[\w.]+\(([^()]*(?:\([^()]*\)[^()]*)*)\)\s*(?:->|$)", re.MULTILINE)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+|0x[0-9a-f]{6,}|/[\w./-]*/|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FOREIGN = ("abc", "builtins", "collections", "contextlib", "dataclasses", "enum", "functools", "numpy", "typing")
_NOT_STRINGS = frozenset({"None", "True", "False", "int", "float", "bool", "str", "tuple", "list", "dict", "Tensor"})


@dataclass(frozen=True)
class Parameter:
    """A parameter of a signature: `default` is `inspect.Parameter.empty` where a call must name it."""

    name: str
    default: Any
    annotation: str
    is_positional: bool
    strings: tuple[str, ...] = ()

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True)
class PublicCallable:
    """A public callable.

    Attributes:
        name: its path from the package on.
        signature: parameters with defaults, as text.
        is_first: no other name of the same object precedes it; the others have no calls of their own.
    """

    name: str
    value: Any
    signature: str
    parameters: tuple[Parameter, ...]
    is_first: bool = field(default=True)


def find_callables(namespaces: Sequence[str]) -> list[PublicCallable]:
    """Return the public callables of modules and methods of classes that exist, without those of other packages."""
    found: dict[str, PublicCallable] = {}
    known: set[int] = set()
    for namespace in namespaces:
        try:
            module = _import(namespace)
        except Exception:
            continue
        for name in sorted(getattr(module, "__all__", None) or dir(module)):
            value = _load(module, name)
            if name.startswith("_") or not _is_own(value, namespace.partition(".")[0]):
                continue
            path = f"{namespace}.{name}"
            text, parameters = read_signature(value)
            if not text and name.endswith("_"):
                _, parameters = read_signature(_load(module, name.removesuffix("_")))
            found.setdefault(path, PublicCallable(path, value, text, parameters, id(value) not in known))
            known.add(id(value))
    return list(found.values())


def _import(namespace: str) -> Any:
    """Return a module or a class; where a package binds a name to another module than its file, the bound one."""
    package, _, name = namespace.rpartition(".")
    bound = getattr(_import(package), name, None) if package else None
    return bound if isinstance(bound, types.ModuleType | type) else importlib.import_module(namespace)


def _load(module: Any, name: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(module, name)
    except Exception:
        return None


def _is_own(value: Any, package: str) -> bool:
    """Return whether a value is a callable of a package, and neither a module nor an abstract or error class."""
    if value is None or isinstance(value, types.ModuleType) or not callable(value) or inspect.isabstract(value):
        return False
    if isinstance(value, type) and issubclass(value, BaseException):
        return False
    root = str(getattr(value, "__module__", None) or package).partition(".")[0].lstrip("_")
    return root not in _FOREIGN


def read_signature(value: Any) -> tuple[str, tuple[Parameter, ...]]:
    """Return the signature of a callable as text and its parameters, from its documentation if Python has none."""
    signature = _find_signature(value)
    if signature is None:
        return "", ()
    documentation = inspect.getdoc(value) or ""
    if isinstance(value, type):
        initializer: Any = vars(value).get("__init__")
        documentation += f"\n{inspect.getdoc(initializer) or ''}"
    kinds = inspect.Parameter
    is_open = any(parameter.kind is kinds.VAR_POSITIONAL for parameter in signature.parameters.values())
    parameters = tuple(
        Parameter(
            parameter.name,
            parameter.default,
            "" if parameter.annotation is kinds.empty else str(parameter.annotation),
            parameter.kind is kinds.POSITIONAL_ONLY
            or (is_open and parameter.kind is kinds.POSITIONAL_OR_KEYWORD and parameter.default is kinds.empty),
            documented_strings(parameter.name, f"{parameter.annotation}", documentation),
        )
        for parameter in signature.parameters.values()
        if parameter.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    )
    stars: dict[Any, str] = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}
    text = ", ".join(
        stars.get(parameter.kind, "")
        + parameter.name
        + ("" if parameter.default is kinds.empty else f"={show_default(parameter.default)}")
        for parameter in signature.parameters.values()
    )
    return f"({text})", parameters


def _find_signature(value: Any) -> inspect.Signature | None:
    try:
        signature = inspect.signature(value)
        if [parameter.kind.name for parameter in signature.parameters.values()] != ["VAR_POSITIONAL", "VAR_KEYWORD"]:
            return signature
        initializer: Any = vars(value).get("__init__") if isinstance(value, type) else None
        if initializer and (overloads := typing.get_overloads(initializer)):
            return inspect.signature(functools.partial(overloads[0], None))
        return _documented_signature(value) or signature
    except Exception:
        return _documented_signature(value)


def _documented_signature(value: Any) -> inspect.Signature | None:
    """Return the signature in the first lines of a docstring, as builtin functions have it."""
    match = _DOC_SIGNATURE.search(str(getattr(value, "__doc__", None) or "")[:400])
    if match is None:
        return None
    try:
        text = match[1].replace("\\", "")
        tree = ast.parse(f"def f({text}): pass").body[0]
        assert isinstance(tree, ast.FunctionDef)
        names = [argument.arg for argument in (*tree.args.posonlyargs, *tree.args.args)]
        defaults = [_read_default(node) for node in tree.args.defaults]
        empty = [inspect.Parameter.empty] * (len(names) - len(defaults))
        kinds = [inspect.Parameter.POSITIONAL_ONLY] * len(empty) + [inspect.Parameter.POSITIONAL_OR_KEYWORD] * len(
            defaults
        )
        entries = zip(names, kinds, [*empty, *defaults], strict=True)
        parameters = [inspect.Parameter(name, kind, default=default) for name, kind, default in entries]
        keyword = inspect.Parameter.KEYWORD_ONLY
        for argument, node in zip(tree.args.kwonlyargs, tree.args.kw_defaults, strict=True):
            if node is not None and argument.arg != "out":
                parameters.append(inspect.Parameter(argument.arg, keyword, default=_read_default(node)))
        return inspect.Signature(parameters)
    except (SyntaxError, ValueError):
        return None


def _read_default(node: ast.expr) -> Any:
    """Return a literal, or an object whose name is the expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return types.SimpleNamespace(name=ast.unparse(node))


def shorten(text: str) -> str:
    """Remove addresses, folders, identifiers and separators from a text, and cut it."""
    return _ADDRESS.sub("", text).replace(";", ",")[:TEXT]


def show_default(default: Any) -> str:
    """Return a default as text that is the same in every process."""
    if isinstance(default, (int, float, str, bytes, type(None))):
        return repr(default)
    if isinstance(default, (tuple, list)):
        return f"({', '.join(map(show_default, default))})"
    name = getattr(default, "__qualname__", None) or getattr(default, "name", None)
    return str(name) if isinstance(name, str) else shorten(f"{type(default).__name__} {default}")


def documented_strings(name: str, annotation: str, documentation: str) -> tuple[str, ...]:
    """Return the texts that a documentation or a Literal annotation offers for a parameter, at most eight."""
    if "Literal[" in annotation:
        return tuple(dict.fromkeys(_QUOTED.findall(annotation)))[:8]
    lines = documentation.splitlines()
    for number, line in enumerate(lines):
        if re.match(rf"\s*[-*:]?\s*(?:param\s+)?[`*]*{re.escape(name)}[`*]*\s*[(:]", line):
            indent = len(line) - len(line.lstrip())
            end = number + 1
            while end < len(lines) and (not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > indent):
                end += 1
            strings = _QUOTED.findall("\n".join(lines[number:end]))
            return tuple(dict.fromkeys(text for text in strings if text not in _NOT_STRINGS and text != name))[:8]
    return ()


TRIALS = 24  # combinations of required arguments, at most
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Variant:
    """A variant of a kind's program, made by replacing texts in it.

    Attributes:
        is_same: the result must equal that of the unchanged program, apart from rounding.
        with_options: the variant also runs with each changed option.
    """

    name: str
    replace: tuple[tuple[str, str], ...]
    is_same: bool = False
    with_options: bool = False

    def apply(self, program: str) -> str:
        """Return the program with the texts replaced; unchanged where it has none of them."""
        for old, new in self.replace:
            program = program.replace(old, new)
        return program


@dataclass(frozen=True)
class Kind:
    """Callables that one program can call: subclasses of `base` whose full names match `names`; "" is no condition.

    Attributes:
        required: regular expression for the names of parameters that every call passes although they have a default.
    """

    name: str
    program: str
    base: str = ""
    names: str = ""
    arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    required: str = ""
    variants: tuple[Variant, ...] = ()

    def fits(self, candidate: PublicCallable) -> bool:
        """Return whether this kind's program can call a callable."""
        if self.names and not re.fullmatch(self.names, candidate.name):
            return False
        if self.base:
            return isinstance(candidate.value, type) and issubclass(candidate.value, _resolve(self.base))
        return bool(self.names)

    def needs(self, parameter: Parameter) -> bool:
        """Return whether every call passes this parameter."""
        return parameter.is_required or bool(re.fullmatch(self.required, parameter.name))


def _resolve(name: str) -> type:
    """Return the class of a dotted name; if there is none, a new class, which has no subclasses."""
    module, _, attribute = name.rpartition(".")
    try:
        value: type = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError):
        return type(name, (), {})
    return value


@dataclass(frozen=True)
class Package:
    """A package, as a file of `frameworks/FRAMEWORK/fingerprints` describes it.

    Attributes:
        mode: mode of the adapter in which variants with `is_same` are judged, "" for the default one.
        is_deterministic: two processes split the calls; otherwise both make all calls, and unequal results are dropped.
        before: statements run before every program and not shown in reports, such as seeds.
        tensor: template of an expression that makes a tensor of a number, "" for none.
        arguments: expressions for parameters without a default, by a regular expression for their names, or `fallback`.
        options: expressions for parameters with a default, likewise.
        left_out: regular expression for the names of callables that are not called.
    """

    distribution: str
    namespaces: tuple[str, ...]
    kinds: tuple[Kind, ...]
    mode: str = ""
    is_deterministic: bool = False
    before: str = ""
    tensor: str = ""
    arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    fallback: tuple[str, ...] = ("2", "0.5")
    left_out: str = ""

    def kind_of(self, candidate: PublicCallable) -> Kind | None:
        """Return the first kind that fits a callable, None if the callable is not to be called."""
        if self.left_out and re.fullmatch(self.left_out, candidate.name):
            return None
        return next((kind for kind in self.kinds if kind.fits(candidate)), None)


def load_package(path: Path) -> Package:
    """Read the file of a package.

    Raises:
        TypeError: it has an unknown key.
    """
    table = tomllib.loads(path.read_text("utf-8"))
    kinds = []
    for kind in table.pop("kinds"):
        variants = tuple(
            Variant(**(variant | {"replace": tuple(map(tuple, variant["replace"]))}))
            for variant in kind.pop("variants", [])
        )
        kinds.append(Kind(**kind, variants=variants))
    for name in ("namespaces", "fallback"):
        if name in table:
            table[name] = tuple(table[name])
    return Package(**table, kinds=tuple(kinds))


def package_files(framework: str) -> dict[str, Path]:
    """Return the files that describe packages of a framework, by distribution."""
    files = sorted((ROOT / "frameworks" / framework / "fingerprints").glob("*.toml"))
    return {load_package(file).distribution: file for file in files}


def write_program(candidate: PublicCallable, program: str, arguments: Sequence[tuple[str, str]]) -> str:
    """Return a kind's program with a call; an argument is its name, "" if positional, and an expression."""
    call = ", ".join(f"{name}={text}" if name else text for name, text in arguments)
    return fill_program(program.strip(), candidate.name, call)


def _lookup(name: str, *tables: Mapping[str, Sequence[str]]) -> Sequence[str] | None:
    return next((texts for table in tables for rule, texts in table.items() if re.fullmatch(rule, name)), None)


def required_arguments(
    package: Package, kind: Kind, parameters: Sequence[Parameter]
) -> Iterator[list[tuple[str, str]]]:
    """Yield combinations of required arguments, as `write_program` takes them, likely ones first."""
    required = [parameter for parameter in parameters if kind.needs(parameter)]
    candidates = [_argument_texts(package, kind, parameter) for parameter in required]
    width = max(map(len, candidates), default=1)
    alike = (tuple(texts[min(index, len(texts) - 1)] for texts in candidates) for index in range(width))
    combinations = dict.fromkeys(itertools.islice(itertools.chain(alike, itertools.product(*candidates)), 4 * TRIALS))
    for combination in itertools.islice(combinations, TRIALS):
        yield [
            ("" if parameter.is_positional else parameter.name, text)
            for parameter, text in zip(required, combination, strict=True)
        ]


def other_arguments(
    kind: Kind, parameters: Sequence[Parameter], arguments: Sequence[tuple[str, str]]
) -> Iterator[list[tuple[str, str]]]:
    """Yield the arguments with another of the kind's expressions for one parameter without a default."""
    for index, parameter in enumerate(filter(kind.needs, parameters)):
        name, taken = arguments[index]
        for text in _lookup(parameter.name, kind.arguments) or ():
            if text != taken:
                yield [*arguments[:index], (name, text), *arguments[index + 1 :]]


def _argument_texts(package: Package, kind: Kind, parameter: Parameter) -> Sequence[str]:
    if texts := _lookup(parameter.name, kind.arguments, package.arguments):
        return texts
    if parameter.strings:
        return [repr(text) for text in parameter.strings[:3]]
    texts_by_type = {"bool": ["True"], "int": ["2"], "float": ["0.5"], "str": ["'a'"]}
    for type_name, type_texts in texts_by_type.items():
        if re.search(rf"\b{type_name}\b", parameter.annotation):
            return type_texts
    return package.fallback


def option_texts(package: Package, kind: Kind, parameter: Parameter) -> list[str]:
    """Return expressions for an option: boundary values, an ordinary value, and its default, passed by name.

    There are none if a table has an empty list for the option.
    """
    default = parameter.default
    listed = _lookup(parameter.name, kind.options, package.options)
    texts = list(listed or ())
    if listed is not None and not texts:
        return []
    if texts:
        pass
    elif isinstance(default, bool):
        texts = [repr(not default)]
    elif isinstance(default, enum.Enum):
        texts = [repr(member.value) for member in type(default)][:4]
    elif isinstance(default, float) and not math.isfinite(default):
        texts = ["0.0", "1.0"]
    elif isinstance(default, (int, float)):
        ordinary = default * 2 + 1 if isinstance(default, int) else default / 2 or 0.5
        texts = ["0", "1", repr(ordinary)] + ([package.tensor.format(repr(default))] if package.tensor else [])
    elif isinstance(default, str) or parameter.strings:
        texts = [repr(text) for text in parameter.strings] + ["None"]
    elif default is None:
        texts_by_type = {"bool": ["True", "False"], "int": ["0", "1", "3"], "float": ["0.0", "1.0", "0.5"]}
        texts = [
            text
            for type_name, type_texts in texts_by_type.items()
            if re.search(rf"\b{type_name}\b", parameter.annotation)
            for text in type_texts
        ]
        texts = texts or ["True", "0", "1", "0.5"]
    elif isinstance(default, (tuple, list)) and default and all(isinstance(value, (int, float)) for value in default):
        texts = [repr(type(default)(value * factor for value in default)) for factor in (0, 0.5)]
    if isinstance(default, float) and not math.isfinite(default):
        texts.append(f"float('{default}')")
    elif isinstance(default, (bool, int, float, str, type(None))) and not isinstance(default, enum.Enum):
        texts.append(repr(default))
    elif not inspect.isclass(default):
        texts.append("None")
    return list(dict.fromkeys(texts))


@dataclass(frozen=True)
class JudgedKind:
    """A kind of callables of a package that has a variant with `is_same`."""

    file: Path
    distribution: str
    kind: str

    def __str__(self) -> str:
        return f"{self.distribution}-{self.kind}"


def judged_kinds(framework: str, mode: str, default_mode: str) -> list[JudgedKind]:
    """Return the kinds with an `is_same` variant, of the installed packages that a mode judges."""
    result = []
    for file in package_files(framework).values():
        package = load_package(file)
        if (package.mode or default_mode) == mode and find_version(package.distribution):
            kinds = [kind for kind in package.kinds if any(variant.is_same for variant in kind.variants)]
            result += [JudgedKind(file, package.distribution, kind.name) for kind in kinds]
    return result


def find_version(distribution: str) -> str:
    """Return the installed version of a distribution, "" for none."""
    return next((installed.version for installed in metadata.distributions(name=distribution)), "")
