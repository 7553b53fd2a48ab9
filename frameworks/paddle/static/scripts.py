"""Programs that try Paddle's own call for each capability in the static graph, without this adapter's guards.

Each of them runs after `frameworks.paddle.static.probes.PRELUDE`, and succeeds if the technique takes effect.
"""

from __future__ import annotations

from frameworks.contract import Capability

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
_UNSCALE = """
with low_scope():
    loss = net(x).sum()
scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
optimizer = decorated(net, paddle.optimizer.SGD(1.0, parameters=net.parameters()))
optimizer.backward(scaler.scale(loss))
scaler.unscale_(optimizer)
run([loss])
"""
_TWO_LOSSES = """
with low_scope():
    losses = [net(x).sum(), (net(x) * float('inf')).sum()]
scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
scaled = [scaler.scale(loss) for loss in losses]
optimizer = decorated(net, paddle.optimizer.SGD(1.0))
for loss in scaled:
    scaler.minimize(optimizer, loss)
run(losses)
assert read('loss_scaling_0')[0] == 4.0 and (read(net.weight.name) == 1.0).all()
"""
_TWO_OPTIMIZERS = """
other = linear()
loss = (net(x) + other(x)).sum()
for layer, rate in ((net, 1.0), (other, 0.5)):
    paddle.optimizer.SGD(rate, parameters=layer.parameters()).minimize(loss)
run([loss])
assert (read(net.weight.name) == 0.0).all() and (read(other.weight.name) == 0.5).all()
"""
_MERGE = """
from paddle.distributed import fleet
from paddle.distributed.passes import PassContext, new_pass
def merged(inner, outer, minimize):
    x = paddle.static.data('x', [None, 2], 'float32')
    layer = linear()
    loss = layer(x).sum()
    minimize(loss, inner, outer)
    exe.run(outer)
    exe.run(inner, feed={'x': one}, fetch_list=[loss])
    return (read(layer.weight.name) == 1.0).all()
def by_optimizer(loss, inner, outer):
    paddle.incubate.optimizer.GradientMergeOptimizer(paddle.optimizer.SGD(1.0), 2).minimize(loss)
def by_fleet(loss, inner, outer):
    strategy = fleet.DistributedStrategy()
    strategy.gradient_merge = True
    strategy.gradient_merge_configs = {'k_steps': 2, 'avg': True}
    fleet.init(is_collective=True, strategy=strategy)
    fleet.distributed_optimizer(paddle.optimizer.SGD(1.0), strategy=strategy).minimize(loss)
def by_pass(loss, inner, outer):
    _, pairs = paddle.optimizer.SGD(1.0).minimize(loss)
    settings = {'k_steps': 2, 'avg': True, 'params_grads': pairs, 'gradient_sync_after_accumulate': True}
    new_pass('auto_parallel_gradient_merge_pass', settings).apply([inner], [outer], PassContext())
assert any_way(*(lambda inner, outer, way=way: merged(inner, outer, way) for way in (by_optimizer, by_fleet, by_pass)))
"""
_RECOMPUTE = """
from paddle.distributed.fleet.utils import recompute
from paddle.distributed.passes import PassContext, new_pass
def computed(inner, outer, minimize):
    x = paddle.static.data('x', [None, 2], 'float32')
    layer = linear()
    hidden = recompute(lambda t: paddle.tanh(paddle.tanh(layer(t))), x)
    loss = hidden.sum()
    minimize(loss, hidden, inner, outer)
    exe.run(outer)
    exe.run(inner, feed={'x': one}, fetch_list=[loss])
    return [op.name() for op in inner.global_block().ops].count('pd_op.tanh') > 2
def by_call(loss, hidden, inner, outer):
    paddle.optimizer.SGD(1.0).minimize(loss)
def by_optimizer(loss, hidden, inner, outer):
    optimizer = paddle.incubate.optimizer.RecomputeOptimizer(paddle.optimizer.SGD(1.0))
    optimizer._set_checkpoints([hidden])
    optimizer.minimize(loss)
def by_pass(loss, hidden, inner, outer):
    paddle.optimizer.SGD(1.0).minimize(loss)
    new_pass('auto_parallel_recompute_pir', {'refined_ops_patterns': []}).apply([inner], [outer], PassContext())
assert any_way(*(lambda inner, outer, way=way: computed(inner, outer, way) for way in (by_call, by_optimizer, by_pass)))
"""
_CALLS = """
calls = []
hidden = net(x)
shown = paddle.static.py_func(lambda value: calls.append(1) or np.asarray(value), hidden, hidden)
run([shown])
assert calls == [1]
"""
_BYTES = """
loss = net(x).sum()
(_, gradient), = paddle.static.append_backward(loss)
run([loss])
assert np.isfinite(exe.run(fetch_list=[gradient])[0]).all()
"""
_TF32 = """
from paddle.base import core
ones = paddle.full([16, 16], 1.0 + 2.0**-12)
product = paddle.matmul(ones, ones)
products = []
for allowed in (True, False):
    core.set_cublas_switch(allowed)
    products.append(exe.run(fetch_list=[product])[0])
assert not np.array_equal(*products)
"""
_OPERATIONS = """
F = paddle.nn.functional
for dtype in ('bfloat16', 'float16'):
    low = paddle.ones([2, 2]).astype(dtype)
    paddle.einsum('ij,jk->ik', low, low), paddle.linalg.norm(low, p=2), paddle.var(low), paddle.logsumexp(low, axis=-1)
    F.mse_loss(low, low), F.rms_norm(low, [2]), F.batch_norm(low, paddle.zeros([2]), paddle.ones([2]), training=True)
"""
_TRACE = """
shown = []
net.register_forward_post_hook(lambda layer, inputs, output: shown.append(output))
loss = (net(x) * 3.0).sum()
output, gradient = run([*shown, *paddle.static.gradients([loss], shown)])
assert output.item() == 2.0 and gradient.item() == 3.0
"""
_PEAK = "assert paddle.device.max_memory_allocated() > 0"
AFTER_BFLOAT16 = """
with paddle.amp.auto_cast(dtype='bfloat16'):
    loss = net(x).sum()
scaled = paddle.amp.GradScaler(init_loss_scaling=8.0).scale(loss)
assert run([scaled])[0] == 16.0
"""
JOINT_CLIP = """
other = linear()
loss = (3.0 * net(x)[:, :1] + 4.0 * other(x)).sum()
def by_optimizers():
    clip = paddle.nn.ClipGradByGlobalNorm(1.0)
    for layer in (net, other):
        paddle.optimizer.SGD(1.0, parameters=layer.parameters(), grad_clip=clip).minimize(loss)
def by_call():
    pairs = paddle.static.append_backward(loss)
    paddle.nn.utils.clip_grad_norm_([parameter for parameter, _ in pairs], 1.0)
    for layer in (net, other):
        own = {parameter.name for parameter in layer.parameters()}
        paddle.optimizer.SGD(1.0).apply_gradients([(p, g) for p, g in pairs if p.name in own])
try:
    by_call()
except Exception:
    by_optimizers()
run([loss])
moved = np.concatenate([1.0 - read(layer.weight.name) for layer in (net, other)])
assert abs(np.linalg.norm(moved) - 1.0) < 1e-3
"""
SCALED_FLOAT64 = """
wide = paddle.create_parameter([1], 'float64', default_initializer=Constant(1.0))
with low_scope():
    loss = (net(x).sum().astype('float64') * wide).sum()
scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
scaler.minimize(decorated(net, paddle.optimizer.SGD(0.5)), scaler.scale(loss))
run([loss])
assert read(wide.name)[0] == 0.0
"""
BESIDE_CONSTANTS = """
other = paddle.nn.Linear(1, 1)
other.weight.stop_gradient = True
with paddle.amp.auto_cast(dtype='bfloat16'):
    loss = other(net(x)).astype('float32').sum()
paddle.optimizer.SGD(0.5).minimize(loss)
assert np.isfinite(run([loss])[0]).all()
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
for parameters in (net.parameters(), [wide]):
    paddle.optimizer.Momentum(0.5, parameters=parameters).minimize(loss)
assert run([loss])[0].dtype == np.float64 and read(wide.name).dtype == np.float64 and read(wide.name)[0] == 0.0
"""
_LOW = """
optimizer = paddle.optimizer.SGD(0.5)
net, optimizer = paddle.amp.decorate(
    models=net, optimizers=optimizer, level='O2', dtype={dtype!r}, master_weight={masters}
)
with paddle.amp.auto_cast(level='O2', dtype={dtype!r}):
    loss = net(x).astype('float32').sum()
optimizer.minimize(loss)
assert str(net.weight.dtype).endswith({dtype!r}) and run([loss])[0] == 2.0 and run([loss])[0] == 1.0
assert any('master' in name for name in paddle.static.global_scope().local_var_names()) is {masters}
"""
_FEED = """
given = paddle.static.data('given', [2, 1], 'float32')
loss = (net.weight * given).sum()
paddle.optimizer.SGD(0.5).minimize(loss)
exe.run(startup)
exe.run(feed={'x': one, 'given': np.array([[0.5], [2.0]], 'float32')}, fetch_list=[loss])
assert (read(net.weight.name) == [0.75, 0.0]).all()
"""
_CHECKPOINT = """
import tempfile
loss = net(x).sum()
paddle.optimizer.SGD(0.5).minimize(loss)
run([loss])
with tempfile.TemporaryDirectory() as folder:
    paddle.static.save(main, folder + '/run')
    run([loss])
    paddle.static.load(main, folder + '/run', exe)
assert (read(net.weight.name) == 0.5).all()
"""
_ORDER = """
import tempfile
rate = paddle.optimizer.lr.ExponentialDecay(1.0, 0.5)
loss = net(x).sum()
paddle.optimizer.Momentum(rate, 0.5).minimize(loss)
run([loss]); rate.step()
with tempfile.TemporaryDirectory() as folder:
    paddle.static.save(main, folder + '/run')
    saved = paddle.static.load_program_state(folder + '/run')
decayed = rate.state_dict()
run([loss]); rate.step()
rate.set_state_dict(decayed)
model = {name: value for name, value in saved.items() if name == net.weight.name}
for part in ({name: value for name, value in saved.items() if name not in model}, model):
    paddle.static.set_program_state(main, part)
run([loss])
assert (read(net.weight.name) == -0.75).all()
"""

SCRIPTS: dict[Capability, str] = {
    Capability.O1_FLOAT16: _SCOPE.format(level="O1", dtype="float16"),
    Capability.O1_BFLOAT16: _SCOPE.format(level="O1", dtype="bfloat16"),
    Capability.O2_FLOAT16: _LOW.format(dtype="float16", masters=True),
    Capability.O2_BFLOAT16: _LOW.format(dtype="bfloat16", masters=True),
    Capability.O3_FLOAT16: _LOW.format(dtype="float16", masters=False),
    Capability.O3_BFLOAT16: _LOW.format(dtype="bfloat16", masters=False),
    Capability.FLOAT64_HEADS: _FLOAT64,
    Capability.TF32: _TF32,
    Capability.AUTOCAST_SCOPE: _SCOPE.format(level="O1", dtype="bfloat16"),
    Capability.AUTOCAST_LISTS: _LISTS,
    Capability.OPERATIONS: _OPERATIONS,
    Capability.DYNAMIC_SCALING: _DYNAMIC,
    Capability.STATIC_SCALING: _STATIC,
    Capability.SCALING_FACTORS: _FACTORS,
    Capability.SCALING_DISABLED: _DISABLED,
    Capability.EXPLICIT_UNSCALE: _UNSCALE,
    Capability.SECOND_UNSCALE: _UNSCALE,
    Capability.TWO_OPTIMIZERS: _TWO_OPTIMIZERS,
    Capability.TWO_LOSSES: _TWO_LOSSES,
    Capability.ACCUMULATION: _MERGE,
    Capability.PARTIAL_WINDOW: _MERGE,
    Capability.RECOMPUTE: _RECOMPUTE,
    Capability.RECOMPUTE_NESTED: _RECOMPUTE,
    Capability.RECOMPUTE_CASES: _RECOMPUTE,
    Capability.SEGMENT_CALLS: _CALLS,
    Capability.GROUPS: _GROUPS,
    Capability.CLIP: _CLIP,
    Capability.SCHEDULE: _SCHEDULE,
    Capability.MISSING_GRADIENTS: _MISSING,
    Capability.AVERAGE: _AVERAGE,
    Capability.SAVED_BYTES: _BYTES,
    Capability.PEAK_BYTES: _PEAK,
    Capability.TRACE: _TRACE,
    Capability.FEED: _FEED,
    Capability.CHECKPOINT: _CHECKPOINT,
    Capability.LOAD_ORDER: _ORDER,
}
