"""pip and uv in the place of `subprocess.run`, and the locks by which they install."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

REAL_RUN = subprocess.run
NUMPY, OLDER = "numpy==2.4.6", "numpy==2.3.5"
SUITE = {"numpy": "2.4.6", "scipy": "1.17.1"}
LOCKS = {
    "suite": SUITE,
    "torch": SUITE | {"torch": "2.13.0", "sympy": "1.14.0"},
    "tf": SUITE | {"tensorflow": "2.21.0", "tensorflow-cpu": "2.21.0", "keras": "3.15.1"},
    "paddle": SUITE | {"paddlepaddle": "3.3.1", "numpy": "2.3.5", "setuptools": "84.2.1"},
    "jax": SUITE | {"jax": "0.10.2", "jaxlib": "0.10.2", "flax": "0.12.8", "orbax-checkpoint": "0.12.8"},
    "frameworks": SUITE | {"torch": "2.13.0", "jax": "0.10.2", "numpy": "2.3.5"},
}
JAX = ["flax", "optax", "jmp", "orbax-checkpoint"]
TORCH_INDEX, PADDLE_INDEX = "https://download.pytorch.org/whl/", "https://www.paddlepaddle.org.cn/packages/stable/"
RELEASE = "packages = [{ wheels = [{ upload-time = 2026-04-16T12:32:11Z }, { upload-time = 2026-05-01T00:00:00Z }] }]"


@dataclass
class Installers:
    """pip and uv in the place of `subprocess.run`: what they are asked, and how they end; every other command is run.

    Attributes:
        status, errors, output: how an installation ends.
        resolved: what `uv pip compile` finds, None for no solution.
        release: the pylock.toml of the next release, "" for none.
        incompatible: a pin under which no installation succeeds.
        installed: the words of each installation, from "install" on, and its pins.
        compiled: the options and the requirements of each resolution.
    """

    status: int = 0
    errors: str = ""
    output: str = ""
    resolved: Mapping[str, str] | None = None
    release: str = RELEASE
    incompatible: str = ""
    installed: list[tuple[list[str], list[str]]] = field(default_factory=list)
    compiled: list[tuple[list[str], list[str]]] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)

    def __call__(self, words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        if words[1:3] == ["pip", "compile"]:
            output = Path(words[words.index("--output-file") + 1])
            self.compiled.append((words[3:], str(options["input"]).split("\n")))
            if output.name == "pylock.toml":
                text = self.release
            else:
                assert output.read_text() == "numpy==2.4.6\nscipy==1.17.1\n"
                text = "\n".join(f"{name}=={version}" for name, version in (self.resolved or {}).items())
            output.write_text(text)
            return subprocess.CompletedProcess(words, 0 if text else 1, "", "" if text else "error: No solution\n")
        if "pip" not in words[1:3]:
            return REAL_RUN(words, **options)  # type: ignore[call-overload]
        at = words.index("--constraint")
        pins = Path(words[at + 1]).read_text().splitlines()
        self.programs.append(" ".join(words[:at]))
        self.installed.append((words[at + 2 :], pins))
        status = 1 if self.incompatible in pins else self.status
        return subprocess.CompletedProcess(words, status, self.output, self.errors)
