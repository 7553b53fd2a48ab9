"""Attempts by the programs of `frameworks.paddle.static.scripts`.

Some of Paddle's failures in the static graph end the process, so each program runs in one of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import cache, partial

from frameworks.contract import Attempt, Capability
from frameworks.paddle.core.devices import own_name
from frameworks.paddle.static.refused_scripts import REFUSED_SCRIPTS
from frameworks.paddle.static.scripts import AFTER_BFLOAT16, BESIDE_CONSTANTS, JOINT_CLIP, SCALED_FLOAT64, SCRIPTS

PRELUDE = """
import warnings
warnings.simplefilter('ignore')
import numpy as np, paddle
paddle.enable_static()
from paddle.nn.initializer import Constant
exe = paddle.static.Executor()
x = paddle.static.data('x', [None, 2], 'float32')
x.stop_gradient = False
one = np.ones((1, 2), 'float32')
main, startup = paddle.static.default_main_program(), paddle.static.default_startup_program()
def linear():
    return paddle.nn.Linear(2, 1, weight_attr=paddle.ParamAttr(initializer=Constant(1.0)), bias_attr=False)
def run(fetch, value=one, start=[]):
    if not start:
        start.append(exe.run(startup))
    return [np.array(v) for v in exe.run(feed={'x': value}, fetch_list=fetch)]
def read(name):
    return np.array(paddle.static.global_scope().find_var(name).get_tensor()).ravel()
def low_scope():
    return paddle.amp.auto_cast(enable=False, dtype='float16')
def decorated(layer, optimizer):
    return paddle.amp.decorate(models=layer, optimizers=optimizer, level='O1', dtype='float16')[1]
def minimize(layer, optimizer, **settings):
    with low_scope():
        loss = layer(x).sum()
    scaler = paddle.amp.GradScaler(**settings)
    scaler.minimize(decorated(layer, optimizer), scaler.scale(loss))
    return loss
def any_way(*ways):
    for way in ways:
        inner, outer = paddle.static.Program(), paddle.static.Program()
        try:
            with paddle.static.program_guard(inner, outer):
                if way(inner, outer):
                    return True
        except Exception:
            pass
    return False
net = linear()
"""
"""Common beginning of all programs."""


def static_attempts(device: str) -> Mapping[Capability, Attempt]:
    """The attempts on a device; a crash is a failure like an exception."""
    scripts = {**SCRIPTS, **REFUSED_SCRIPTS}
    return {capability: partial(_acts, script, device) for capability, script in scripts.items()}


@cache
def _acts(script: str, device: str) -> bool:
    place = f"import paddle\npaddle.device.set_device({own_name(device)!r})\n"
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


def trains_beside_constants(device: str) -> bool:
    """Whether a bfloat16 model trains together with a weight that needs no gradient."""
    return _acts(BESIDE_CONSTANTS, device)
