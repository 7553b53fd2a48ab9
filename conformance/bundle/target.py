"""The machine that a bundle is for: its Python, its CUDA version, the wheels that it takes."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

_OLDEST, _NEWEST = 17, 28
"""Second parts of the versions of glibc 2 whose wheels a bundle has: those of CentOS 7 to those of RHEL 8."""


@dataclass(frozen=True)
class Target:
    """A Linux machine of this one's architecture.

    Attributes:
        python: such as "3.12".
        cuda: newest CUDA version that its driver runs, such as "13.0"; "" for builds for the CPU.
    """

    python: str
    cuda: str = ""

    def __post_init__(self) -> None:
        for what, text, example in (("python", self.python, "3.12"), ("cuda", self.cuda, "13.0")):
            if not re.fullmatch(r"\d+\.\d+", text) and (what == "python" or text):
                raise ValueError(f"--{what}: got {text!r}, want a version such as {example}")

    @property
    def platforms(self) -> list[str]:
        """Tags of the platforms whose wheels it takes."""
        machine = platform.machine()
        return [
            *(f"manylinux_2_{minor}_{machine}" for minor in range(_NEWEST, _OLDEST - 1, -1)),
            f"manylinux2014_{machine}",
        ]

    @property
    def words(self) -> list[str]:
        """Options of `pip download`."""
        tags = [word for tag in self.platforms for word in ("--platform", tag)]
        return ["--only-binary=:all:", "--python-version", self.python, *tags]

    @property
    def uv_words(self) -> list[str]:
        """Options of `uv pip compile`."""
        return ["--python-version", self.python, "--python-platform", f"{platform.machine()}-manylinux_2_{_NEWEST}"]

    def markers(self) -> Mapping[str, str]:
        """Values of environment markers."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": platform.machine(),
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
            "extra": "",
        }


def parsed(what: str) -> tuple[str, str]:
    """The name and the version, "" if none is given, of "torch==2.13.0".

    Raises:
        ValueError: that is no version.
    """
    name, equals, version = what.partition("==")
    try:
        if equals and not Version(version):
            raise InvalidVersion
    except InvalidVersion:
        raise ValueError(f"{what!r} names no version; write one such as {name}==2.13.0") from None
    return name, version
