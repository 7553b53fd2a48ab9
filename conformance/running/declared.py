"""What an adapter declares, asked in a process of its own, for no two frameworks share one.

`python -m conformance.running.declared NAME DEVICE` prints it as JSON.
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
        modes: what it can be run in, its own choice first.
        refused: capability and reason of everything that it declares not to do.
    """

    name: str
    version: str
    device: str
    modes: tuple[str, ...]
    supported: tuple[str, ...]
    refused: dict[str, str]


def ask(name: str, device: str = "auto") -> Declared | str:
    """What an adapter declares on a device in its first mode, or in one line why it cannot be asked."""
    command = [sys.executable, "-m", "conformance.running.declared", name, device]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"it did not answer within {LIMIT_S} s"
    lines = ended.stdout.strip().splitlines()
    if ended.returncode:
        said = (ended.stderr.strip() or "it said nothing").splitlines()
        return said[-1]
    found = json.loads(lines[-1])
    return Declared(**{**found, "modes": tuple(found["modes"]), "supported": tuple(found["supported"])})


def main(name: str, device: str) -> int:
    """Prints what the adapter declares; 2 and one line if it cannot be loaded."""
    try:
        framework = load(name, device)
    except (UnknownFramework, MissingDevice, ValueError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    answers = {capability.value: framework.declares(capability) for capability in Capability}
    found = {
        "name": framework.name,
        "version": framework.version(),
        "device": framework.device,
        "modes": framework.modes,
        "supported": [key for key, answer in answers.items() if answer.supported],
        "refused": {key: answer.reason for key, answer in answers.items() if not answer.supported},
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
