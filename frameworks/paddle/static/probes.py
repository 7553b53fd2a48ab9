"""What the programs of `frameworks.paddle.static.scripts` show.

Some of Paddle's failures in the static graph end the process, so each program runs in one of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import cache, partial

from frameworks.contract import Attempt, Capability
from frameworks.paddle.static.scripts import AFTER_BFLOAT16, JOINT_CLIP, PRELUDE, SCALED_FLOAT64, SCRIPTS


def static_attempts(device: str) -> Mapping[Capability, Attempt]:
    """The attempts on a device; a crash is a failure like an exception."""
    return {capability: partial(_acts, script, device) for capability, script in SCRIPTS.items()}


@cache
def _acts(script: str, device: str) -> bool:
    place = f"import paddle\npaddle.device.set_device({'gpu' if device == 'cuda' else 'cpu'!r})\n"
    command = [sys.executable, "-W", "ignore", "-c", place + PRELUDE + script]
    return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0


def scales_after_bfloat16(device: str) -> bool:
    """Whether a `GradScaler` scales after a bfloat16 scope."""
    return _acts(AFTER_BFLOAT16, device)


def clips_jointly(device: str) -> bool:
    """Whether two optimizers clip by the norm of all their gradients."""
    return _acts(JOINT_CLIP, device)


def scales_float64(device: str) -> bool:
    """Whether a `GradScaler` takes gradients of a float64 parameter."""
    return _acts(SCALED_FLOAT64, device)
