"""Asks an adapter for its declarations in a new process, since no two frameworks share one.

`python -m conformance.runner.adapter_info NAME DEVICE` prints it as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from frameworks.contract import Capability, MissingDevice
from frameworks.registry import UnknownFramework, load

ROOT = Path(__file__).parents[2]
LIMIT_S = 120


@dataclass(frozen=True)
class Declared:
    """An adapter.

    Attributes:
        modes: its modes, the default first.
        refused: reason by capability, for everything that it declares as unsupported.
    """

    name: str
    version: str
    device: str
    modes: tuple[str, ...]
    supported: tuple[str, ...]
    refused: dict[str, str]


def ask(name: str, device: str = "auto") -> Declared | str:
    """What an adapter declares on a device in its default mode, or one line that says why it cannot be loaded."""
    command = [sys.executable, "-m", "conformance.runner.adapter_info", name, device]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {LIMIT_S} s"
    lines = ended.stdout.strip().splitlines()
    if ended.returncode:
        said = (ended.stderr.strip() or "it printed nothing").splitlines()
        return said[-1]
    result = json.loads(lines[-1])
    return Declared(**{**result, "modes": tuple(result["modes"]), "supported": tuple(result["supported"])})


def main(name: str, device: str) -> int:
    """Prints what the adapter declares; if it cannot be loaded, prints one line and returns 2."""
    try:
        framework = load(name, device)
    except (UnknownFramework, MissingDevice, ValueError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    answers = {capability.value: framework.declares(capability) for capability in Capability}
    result = {
        "name": framework.name,
        "version": framework.version(),
        "device": framework.device,
        "modes": framework.modes,
        "supported": [key for key, answer in answers.items() if answer.supported],
        "refused": {key: answer.reason for key, answer in answers.items() if not answer.supported},
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
