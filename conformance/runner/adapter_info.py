"""Asks an adapter for its declarations in a new process, since no two frameworks share one.

`python -m conformance.runner.adapter_info NAME DEVICE` prints it as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from conformance.known_failures.reading import load_known
from frameworks.contract import Capability, MissingDevice
from frameworks.registry import UnknownFramework, built_in, load

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


def lacks(name: str, wanted: str) -> str:
    """What an adapter without the mode `wanted` has instead, as "torch has no mode 'x': one of eager, ..."; "" if it
    has the mode. A built-in adapter is asked only about a mode that is in none of its judged series.

    Raises:
        UnknownFramework: the adapter's modes are not known, since it cannot be loaded.
    """
    judged = load_known([name]).judged.get(name, {}) if name in built_in() else {}
    modes = tuple(dict.fromkeys(mode for _, mode in judged))
    if wanted in modes:
        return ""
    answer = ask(name)
    if isinstance(answer, Declared):
        modes = answer.modes
    elif not modes:
        raise UnknownFramework(answer)
    return "" if wanted in modes else f"{name} has no mode {wanted!r}: one of {', '.join(modes)}"


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
