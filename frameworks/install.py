"""Installs a framework with pip at the pinned version, or at the one that the environment names.

    python -m frameworks.install torch

The version comes from TORCH_VERSION, TF_VERSION, PADDLE_VERSION or JAX_VERSION. Where the NVIDIA driver answers, the
GPU build is chosen. Exit status 0, or 2 with one line if that version cannot be installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from packaging.requirements import Requirement


@dataclass(frozen=True)
class Distribution:
    """What to install for a framework.

    Attributes:
        variable: environment variable that overrides the pinned version.
        pinned: the version of the committed baselines.
        cpu, gpu: package names, extras included.
        beside: further requirements, which hold whatever the version.
    """

    variable: str
    pinned: str
    cpu: str
    gpu: str
    beside: tuple[str, ...] = ()


_JAX_COMPANIONS = ("flax==0.12.8", "optax==0.2.8", "jmp==0.0.4", "orbax-checkpoint==0.12.8")

DISTRIBUTIONS: dict[str, Distribution] = {
    "torch": Distribution("TORCH_VERSION", "2.13.0", "torch", "torch"),
    "tf": Distribution("TF_VERSION", "2.21.0", "tensorflow-cpu", "tensorflow[and-cuda]"),
    "paddle": Distribution("PADDLE_VERSION", "3.3.1", "paddlepaddle", "paddlepaddle-gpu", ("numpy<2.4", "setuptools")),
    "jax": Distribution("JAX_VERSION", "0.10.2", "jax", "jax[cuda12]", _JAX_COMPANIONS),
}
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!-]*")


def gpu_present() -> bool:
    """Whether the NVIDIA driver answers on this machine."""
    command = shutil.which("nvidia-smi")
    return command is not None and subprocess.run([command, "-L"], capture_output=True, check=False).returncode == 0


def installed(package: str) -> str | None:
    """The installed version of a package without its local label, None if there is none."""
    try:
        return version(package.partition("[")[0]).partition("+")[0]
    except PackageNotFoundError:
        return None


def installed_version(framework: str) -> str | None:
    """The installed version of a built-in framework's package, for the CPU or a GPU; None if there is none."""
    chosen = DISTRIBUTIONS[framework]
    return installed(chosen.cpu) or installed(chosen.gpu)


def satisfied(requirement: str) -> bool:
    """Whether an installed package meets a requirement such as "numpy<2.4"."""
    wanted = Requirement(requirement)
    found = installed(wanted.name)
    return found is not None and wanted.specifier.contains(found, prereleases=True)


def main(arguments: list[str]) -> int:
    """Installs one framework; returns the exit status."""
    if len(arguments) != 1 or arguments[0] not in DISTRIBUTIONS:
        return _refuse(f"usage: python -m frameworks.install {{{','.join(DISTRIBUTIONS)}}}")
    chosen = DISTRIBUTIONS[arguments[0]]
    wanted = os.environ.get(chosen.variable) or chosen.pinned
    if not _VERSION.fullmatch(wanted):
        return _refuse(f"{chosen.variable}={wanted!r} is not a version; write one such as {chosen.pinned}")
    package = chosen.gpu if gpu_present() else chosen.cpu
    if installed(package) == wanted.partition("+")[0] and all(satisfied(requirement) for requirement in chosen.beside):
        return 0
    requirements = [f"{package}=={wanted}", *chosen.beside]
    if sys.stderr.isatty():
        print(f"installing {package} {wanted}", file=sys.stderr)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", *requirements], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return 0
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or ["ERROR: pip gave no reason"]
    return _refuse(
        f"{package} {wanted} cannot be installed ({errors[-1][7:].strip()}); set {chosen.variable} to another version"
    )


def _refuse(line: str) -> int:
    print(line, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
