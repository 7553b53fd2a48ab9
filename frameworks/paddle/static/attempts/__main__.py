"""Runs an attempt: `python -m frameworks.paddle.static.attempts DEVICE MODULE:FUNCTION ARGUMENTS`, as JSON."""

from __future__ import annotations

import json
import sys
from pkgutil import resolve_name

from frameworks.paddle.static.attempts.program import StaticProgram

if __name__ == "__main__":
    device, function, arguments = sys.argv[1:]
    resolve_name(function)(StaticProgram(device), *json.loads(arguments))
