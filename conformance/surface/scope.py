"""`surface.toml`, next to an adapter: where its framework's techniques are, and what is out of scope for a reason.

    between = ["torch._compile", "module:function"]    modules and functions between a caller and its call
    general = ["torch.nn.modules.module.Module"]       base classes whose methods belong to no technique

    [techniques]
    optimizers = ["torch.optim", "torch.nn.utils.clip_grad_*"]

    [reasons]
    "torch.optim.*:differentiable" = "higher-order training"

A technique's names are classes, functions, modules (the callables of `__all__`, or all public ones) or patterns (also
of those that `__all__` lacks); a name after "!" is left out. A reason's pattern is matched with a callable's name and
with "NAME:PARAMETER".
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from frameworks.adapter_file import adapter_file, folder_of
from frameworks.registry import UnknownFramework, built_in, path_of
from results.record.files import read

FILE = "surface.toml"


@dataclass(frozen=True)
class SurfaceScope:
    """The content of a file.

    Attributes:
        packages: top-level packages of the framework, by which it is recognised as the caller of its own functions.
    """

    framework: str
    packages: frozenset[str]
    techniques: dict[str, list[str]]
    reasons: dict[str, str]
    between: list[str]
    general: list[str]

    def reason(self, name: str, parameter: str = "") -> str:
        """Why a callable or one of its parameters is out of scope, "" if it is not."""
        both = (name, f"{name}:{parameter}")
        return next((why for glob, why in self.reasons.items() if any(fnmatchcase(one, glob) for one in both)), "")


def with_scope() -> list[str]:
    """The built-in adapters whose framework has a scope."""
    places = {name: folder_of(path) for name, path in built_in().items()}
    return sorted(name for name, place in places.items() if place and (place / FILE).is_file())


@cache
def scope_of(framework: str) -> SurfaceScope:
    """The scope of an adapter's framework, which is not imported.

    Raises:
        UnknownFramework: there is no such adapter, or its file is missing or wrong.
        RecordError: the file cannot be read.
    """
    folder = folder_of(path_of(framework))
    path = None if folder is None else folder / FILE
    if path is None or not path.is_file():
        raise UnknownFramework(f"adapter {framework!r} has no {FILE}: name one of {', '.join(with_scope())}")
    try:
        values = tomllib.loads(read(path).decode())
        techniques: dict[str, list[str]] = values["techniques"]
        roots = {name.partition(".")[0] for names in techniques.values() for name in names}
        return SurfaceScope(
            framework,
            frozenset(roots | {*adapter_file(framework).imports}),
            techniques,
            {str(glob): str(why) for glob, why in values.get("reasons", {}).items()},
            [*values.get("between", [])],
            [*values.get("general", [])],
        )
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UnknownFramework(f"{path}: {type(error).__name__}: {error}; see conformance/surface/scope.py") from None
