"""What a cell's environment has: `python -m conformance.sweep.probe FRAMEWORK DEVICE MODE FILE`, run inside of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from conformance.runner import machine
from conformance.runner.identity import series
from frameworks.contract import MissingDevice
from frameworks.registry import UnknownFramework, load


def main(framework: str, device: str, mode: str, file: str) -> int:
    """Imports the framework and writes what a verdict depends on; 2 with one line if it cannot be imported."""
    try:
        adapter = load(framework, device, mode or None)
        known = series(framework, adapter)
        version = adapter.version()
    except (UnknownFramework, MissingDevice, ValueError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    basics = machine.basics()
    content = {
        "version": version,
        "device": known.device,
        "mode": known.mode,
        "packages": machine.packages(),
        "machine": {name: basics[name] for name in ("machine", "python")} | {"device": known.device_kind},
        "instruction_sets": [*machine.instruction_sets()],
    }
    Path(file).write_text(json.dumps(content), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
