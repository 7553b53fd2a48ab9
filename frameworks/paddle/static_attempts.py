"""Probes of static mode. Some of Paddle's failures there end the process, so each probe runs in one of its own."""

from __future__ import annotations

import subprocess
import sys

from frameworks.contract import Capability

_PRELUDE = """
import numpy as np, paddle
paddle.enable_static()
from paddle.nn.initializer import Constant
exe = paddle.static.Executor(paddle.CPUPlace() if not paddle.device.is_compiled_with_cuda() else paddle.CUDAPlace(0))
x = paddle.static.data('x', [None, 2], 'float32')
x.stop_gradient = False
one = np.ones((1, 2), 'float32')
def linear():
    return paddle.nn.Linear(2, 1, weight_attr=paddle.ParamAttr(initializer=Constant(1.0)), bias_attr=False)
def run(fetch, value=one, start=[]):
    if not start:
        start.append(exe.run(paddle.static.default_startup_program()))
    return [np.array(v) for v in exe.run(feed={'x': value}, fetch_list=fetch)]
def read(name):
    return np.array(paddle.static.global_scope().find_var(name).get_tensor()).ravel()
def minimize(layer, optimizer, **settings):
    with paddle.amp.auto_cast(enable=False, dtype='float16'):
        loss = layer(x).sum()
    _, optimizer = paddle.amp.decorate(models=layer, optimizers=optimizer, level='O1', dtype='float16')
    scaler = paddle.amp.GradScaler(**settings)
    scaler.minimize(optimizer, scaler.scale(loss))
    return loss
net = linear()
"""

_SCOPE = """
with paddle.amp.auto_cast(level={level!r}, dtype={dtype!r}):
    y = net(x)
    assert str(y.dtype).lower().endswith({dtype!r}), y.dtype
    loss = paddle.nn.functional.cross_entropy(paddle.concat([y, y], -1), paddle.zeros([1], 'int64'))
paddle.optimizer.SGD(1.0).minimize(loss)
assert np.isfinite(run([loss])[0]).all()
"""
_LISTS = """
with paddle.amp.auto_cast(dtype='bfloat16', custom_black_list={'matmul_v2'}):
    assert str(net(x).dtype).endswith('float32'), net(x).dtype
with paddle.amp.auto_cast(dtype='bfloat16'):
    assert str(net(x).dtype).endswith('bfloat16'), net(x).dtype
"""
_DYNAMIC = """
loss = minimize(net, paddle.optimizer.SGD(1.0), init_loss_scaling=8.0)
run([loss], one * np.inf)
assert read('loss_scaling_0')[0] == 4.0 and (read(net.weight.name) == 1.0).all()
"""
_STATIC = """
loss = minimize(net, paddle.optimizer.SGD(1.0), init_loss_scaling=8.0, use_dynamic_loss_scaling=False)
run([loss])
assert read('loss_scaling_0')[0] == 8.0 and (read(net.weight.name) != 1.0).all()
"""
_FACTORS = """
loss = minimize(net, paddle.optimizer.SGD(1.0), init_loss_scaling=8.0, incr_ratio=4.0, decr_ratio=0.25,
                incr_every_n_steps=1)
run([loss])
assert read('loss_scaling_0')[0] == 32.0
run([loss], one * np.inf)
assert read('loss_scaling_0')[0] == 8.0
"""
_DISABLED = """
loss = minimize(net, paddle.optimizer.SGD(1.0), enable=False)
run([loss])
assert (read(net.weight.name) == 0.0).all()
"""
_UNSCALE = "paddle.amp.GradScaler().unscale_(paddle.optimizer.SGD(1.0, parameters=net.parameters()))"
_MERGE = """
loss = net(x).sum()
paddle.incubate.optimizer.GradientMergeOptimizer(paddle.optimizer.SGD(1.0), 2).minimize(loss)
run([loss])
assert (read(net.weight.name) == 1.0).all()
"""
_RECOMPUTE = """
from paddle.distributed.fleet.utils import recompute
loss = recompute(lambda t: paddle.tanh(paddle.tanh(net(t))), x).sum()
paddle.optimizer.SGD(1.0).minimize(loss)
run([loss])
names = [op.name() for op in paddle.static.default_main_program().global_block().ops]
assert names.count('pd_op.tanh') > 2
"""
_GROUPS = """
other = linear()
groups = [{'params': net.parameters()}, {'params': other.parameters(), 'learning_rate': 0.5}]
loss = (net(x) + other(x)).sum()
paddle.optimizer.SGD(1.0, parameters=groups).minimize(loss)
run([loss])
assert (read(net.weight.name) == 0.0).all() and (read(other.weight.name) == 0.5).all()
"""
_CLIP = """
loss = (net(x) * 2.0).sum()
paddle.optimizer.SGD(1.0, grad_clip=paddle.nn.ClipGradByGlobalNorm(0.5)).minimize(loss)
run([loss])
assert abs(read(net.weight.name) - (1 - 0.5 / 2**0.5)).max() < 1e-6
"""
_SCHEDULE = """
rate = paddle.optimizer.lr.PiecewiseDecay([1], [1.0, 0.5])
loss = net(x).sum()
paddle.optimizer.SGD(rate).minimize(loss)
run([loss]); rate.step(); run([loss])
assert (read(net.weight.name) == -0.5).all()
"""
_MISSING = """
other = linear()
other(x)
loss = net(x).sum()
paddle.optimizer.Momentum(1.0).minimize(loss)
run([loss])
assert (read(net.weight.name) == 0.0).all() and (read(other.weight.name) == 1.0).all()
"""
_AVERAGE = """
loss = net(x).sum()
paddle.optimizer.SGD(1.0).minimize(loss)
average = paddle.static.ExponentialMovingAverage(0.5)
average.update()
run([loss])
with average.apply(exe):
    assert (read(net.weight.name) == 0.0).all()
assert (read(net.weight.name) == 0.0).all()
"""
_FLOAT64 = """
wide = paddle.create_parameter([1], 'float64', default_initializer=Constant(1.0))
loss = (net(x).sum().astype('float64') * wide).sum()
paddle.optimizer.Momentum(0.5).minimize(loss)
assert run([loss])[0].dtype == np.float64 and read(wide.name).dtype == np.float64 and read(wide.name)[0] == 0.0
"""

_SCRIPTS: dict[Capability, str] = {
    Capability.O1_FLOAT16: _SCOPE.format(level="O1", dtype="float16"),
    Capability.O1_BFLOAT16: _SCOPE.format(level="O1", dtype="bfloat16"),
    Capability.O2_FLOAT16: _SCOPE.format(level="O2", dtype="float16"),
    Capability.O2_BFLOAT16: _SCOPE.format(level="O2", dtype="bfloat16"),
    Capability.AUTOCAST_SCOPE: _SCOPE.format(level="O1", dtype="bfloat16"),
    Capability.AUTOCAST_LISTS: _LISTS,
    Capability.DYNAMIC_SCALING: _DYNAMIC,
    Capability.STATIC_SCALING: _STATIC,
    Capability.SCALING_FACTORS: _FACTORS,
    Capability.SCALING_DISABLED: _DISABLED,
    Capability.EXPLICIT_UNSCALE: _UNSCALE,
    Capability.ACCUMULATION: _MERGE,
    Capability.RECOMPUTE: _RECOMPUTE,
    Capability.GROUPS: _GROUPS,
    Capability.CLIP: _CLIP,
    Capability.SCHEDULE: _SCHEDULE,
    Capability.MISSING_GRADIENTS: _MISSING,
    Capability.FLOAT64_HEADS: _FLOAT64,
    Capability.AVERAGE: _AVERAGE,
}


def run_static(capability: Capability) -> bool | None:
    """Whether the probe's process ended well; None where there is no probe. A crash is a False like an exception."""
    script = _SCRIPTS.get(capability)
    if script is None:
        return None
    command = [sys.executable, "-W", "ignore", "-c", _PRELUDE + script]
    return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0
