"""Asks an adapter for its declarations in a new process, since no two frameworks share one.

`python -m conformance.runner.adapter_info NAME DEVICE` prints it as JSON.
"""

import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from conformance.known_failures.reading import WAY, load_known
from frameworks.installer.distributions import distribution_of
from frameworks.registry import UnknownFramework, adapter_file, built_in, load

ROOT = Path(__file__).parents[2]
LIMIT_S = 120


@dataclass(frozen=True)
class AdapterInfo:
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


@cache
def ask(name: str, device: str = "auto") -> AdapterInfo | str:
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
    return msgspec.json.decode(lines[-1], type=AdapterInfo)


def check_mode(framework: str, mode: str, *, loadable: bool = False) -> None:
    """Refuses a mode that an adapter does not have; it is asked if neither its files of settings nor its judged series
    name the mode.

    Args:
        loadable: whether an adapter of one's own must be loadable here; else it may have any mode.

    Raises:
        ValueError: there is no such mode.
        UnknownFramework: there is no such adapter, or its modes are not known.
    """
    modes = _listed_modes(framework)
    if not mode or mode in modes:
        return
    answer = ask(framework)
    if isinstance(answer, AdapterInfo):
        modes = [*answer.modes]
    elif framework not in built_in():
        if loadable:
            raise UnknownFramework(answer)
        return
    if mode not in modes:
        raise ValueError(f"got mode {mode!r}, want a mode of {framework}, such as {', '.join(modes)}")


def _listed_modes(framework: str) -> list[str]:
    """The modes that an adapter's files of settings name, or that it was judged in."""
    from frameworks.ways import declared

    file, chosen = adapter_file(framework), distribution_of(framework)
    listed = [*file.modes, *file.serial, *(mode for each in file.absent for mode in each.modes)]
    listed += [*(chosen.modes if chosen else ()), *(mode for way in declared(framework) for mode in way.modes)]
    if framework in built_in():
        listed += [series.mode.partition(WAY)[0] for series in load_known([framework]).judged.get(framework, ())]
    return [*dict.fromkeys(listed)]


def main(name: str, device: str) -> int:
    """Prints what the adapter declares; if it cannot be loaded, prints one line and returns 2."""
    from frameworks.contract import Capability, MissingDevice

    try:
        framework = load(name, device)
    except (UnknownFramework, MissingDevice, ValueError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    answers = {capability.value: framework.declares(capability) for capability in Capability}
    supported = tuple(key for key, answer in answers.items() if answer.supported)
    refused = {key: answer.reason for key, answer in answers.items() if not answer.supported}
    result = AdapterInfo(framework.name, framework.version(), framework.device, framework.modes, supported, refused)
    print(msgspec.json.encode(result).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
