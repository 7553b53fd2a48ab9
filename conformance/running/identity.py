"""What a record says of the suite that wrote it and of the framework that it is about."""

from __future__ import annotations

import tomllib
from pathlib import Path

from conformance.running import machine
from frameworks.contract import Framework
from results.record.model import Series, Variant

ROOT = Path(__file__).parents[2]


def suite_version() -> str:
    """The suite's version, from its checkout."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"])


def adapter_name(given: str, framework: Framework) -> str:
    """The adapter's name, or the class that the user named instead of one."""
    return given.replace(":", ".") if ":" in given else framework.name


def series(given: str, framework: Framework) -> Series:
    """What makes records of this framework, which the user named so, comparable."""
    environment = framework.environment()
    kind = "cpu" if framework.device == "cpu" else environment.get("device", framework.device)
    return Series(adapter_name(given, framework), framework.device, kind, framework.mode)


def variant(framework: Framework) -> Variant:
    """What may differ between comparable records."""
    return Variant(
        framework.version(),
        machine.basics() | framework.environment(),
        machine.packages(),
        machine.variables(),
        machine.instruction_sets(),
    )


def file_name(given: str, framework: Framework) -> str:
    """FRAMEWORK-VERSION-DEVICE-MODE, without an ending."""
    return "-".join((adapter_name(given, framework), framework.version(), framework.device, framework.mode))
