"""A step of the doctor, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MACHINE = "machine"
"""Subject of the steps that are the same for every framework."""

State = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True)
class Step:
    """The outcome of a step.

    Attributes:
        subject: a framework, or `MACHINE`.
        text: what was observed; of a skipped step the reason.
        remedy: what to do, "" if nothing.
    """

    subject: str
    name: str
    state: State
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        said = f"skipped because {self.text}" if self.state == "skipped" else f"{self.state:<7} {self.text}".rstrip()
        return f"{self.subject:<10} {self.name:<14} {said}{f'; {self.remedy}' if self.remedy else ''}"
