"""More programs like those of `frameworks.paddle.static.scripts`, of techniques that the static graph refuses."""

from __future__ import annotations

from frameworks.contract import Capability
from frameworks.paddle.static.scripts import SCRIPTS

_RATE = """
def moved(rate, inner, outer):
    x = paddle.static.data('x', [None, 2], 'float32')
    layer = linear()
    loss = layer(x).sum()
    paddle.optimizer.Momentum(rate(), 0.0).minimize(loss)
    exe.run(outer)
    exe.run(inner, feed={'x': one, 'rate': np.array(0.5, 'float32')}, fetch_list=[loss])
    return (read(layer.weight.name) == 0.5).all()
rates = (lambda: paddle.full([], 0.5), lambda: paddle.static.data('rate', [], 'float32'))
assert any_way(*(lambda inner, outer, rate=rate: moved(rate, inner, outer) for rate in rates))
"""
_FLEET = """
from paddle.distributed import fleet
strategy = fleet.DistributedStrategy()
loss = paddle.tanh(net(x)).sum()
{settings}
fleet.init(is_collective=True, strategy=strategy)
fleet.distributed_optimizer(paddle.optimizer.Adam(0.5), strategy=strategy).minimize(loss)
run([loss])
assert any('memcpy' in op.name() for op in main.global_block().ops)
"""
_OFFLOADED_CHECKPOINTS = """
strategy.recompute = True
strategy.recompute_configs = {'checkpoints': ['x'], 'enable_offload': True, 'checkpoint_shape': [1, 1]}
"""
_OFFLOADED_MOMENTS = """
strategy.sharding = True
strategy.sharding_configs = {'optimize_offload': True}
"""
_SAVED_TENSORS = """
kept = []
with paddle.autograd.saved_tensors_hooks(lambda value: kept.append(value) or value, lambda value: value):
    loss = paddle.tanh(net(x)).sum()
    paddle.optimizer.SGD(0.5).minimize(loss)
    run([loss])
assert kept
"""
_SHARDED_PARAMETERS = """
from paddle.distributed.sharding import group_sharded_parallel
optimizer = paddle.optimizer.AdamW(parameters=net.parameters())
net, optimizer, _ = group_sharded_parallel(net, optimizer, 'p_g_os', offload=True)
loss = net(x).sum()
optimizer.minimize(loss)
run([loss])
"""
_AWARE_PROGRAM = """
from paddle.static.quantization.quanter import quant_aware
loss = net(x).sum()
settings = {{'quantize_op_types': ['matmul_v2', 'matmul'], **{settings!r}}}
made = quant_aware(main, paddle.CPUPlace(), settings, for_test=False)
paddle.optimizer.SGD(0.5).minimize(loss)
exe.run(startup)
exe.run(made, feed={{'x': one}}, fetch_list=[loss])
"""
_CHANNELS = """
import os, tempfile
from paddle.static.quantization import WeightQuantization
hidden = net(x)
exe.run(startup)
with tempfile.TemporaryDirectory() as folder:
    paddle.static.save_inference_model(folder + '/run', [x], [hidden], exe)
    made = WeightQuantization(folder, 'run.json', 'run.pdiparams')
    made.quantize_weight_to_int(folder + '/codes', weight_quantize_type='channel_wise_abs_max')
    assert os.listdir(folder + '/codes')
"""
_UNSIGNED = _AWARE_PROGRAM.format(settings={"dtype": "uint8"})
_AWARE = """
from paddle.quantization import QAT, QuantConfig
from paddle.quantization.quanters import FakeQuanterWithAbsMaxObserver
from paddle.static.quantization.quanter import quant_aware
technique = QAT(QuantConfig(activation=FakeQuanterWithAbsMaxObserver(), weight=FakeQuanterWithAbsMaxObserver()))
def aware():
    return technique.quantize(paddle.nn.Sequential(linear()), inplace=True)
def given():
    return paddle.static.data('x', [None, 2], 'float32')
def by_layers(inner, outer):
    with paddle.utils.unique_name.guard():
        loss = aware()(given()).sum()
        paddle.optimizer.SGD(0.5).minimize(loss)
    exe.run(outer)
    exe.run(inner, feed={'x': one}, fetch_list=[loss])
    shown = paddle.static.Program()
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(shown, paddle.static.Program()):
        evaluated = aware()
        evaluated.eval()
        outputs = evaluated(given())
    exe.run(shown, feed={'x': one}, fetch_list=[outputs])
    return technique.convert(evaluated, inplace=True) is not None
def by_program(inner, outer):
    paddle.optimizer.SGD(0.5).minimize(linear()(given()).sum())
    return quant_aware(inner, paddle.CPUPlace(), for_test=False) is not None
assert any_way(by_layers, by_program)
"""
_PRODUCT = """
product = paddle.matmul(paddle.full([2, 16], 127, 'int8'), paddle.full([16, 2], 127, 'int8'))
assert (exe.run(fetch_list=[product.astype('int32')])[0] == 16 * 127 * 127).all()
"""
_NARROW = """
def by_view(inner, outer):
    given = paddle.static.data('given', [2], 'float32')
    codes = paddle.cast(given, {name!r}).view('uint8')
    return exe.run(inner, feed={{'given': np.ones(2, 'float32')}}, fetch_list=[codes])[0].dtype == np.uint8
def by_fetch(inner, outer):
    given = paddle.static.data('given', [2], 'float32')
    codes = paddle.cast(given, {name!r})
    return len(exe.run(inner, feed={{'given': np.ones(2, 'float32')}}, fetch_list=[codes])) == 1
assert any_way(by_view, by_fetch)
"""

REFUSED_SCRIPTS: dict[Capability, str] = {
    Capability.TENSOR_RATE: _RATE,
    Capability.GROUP_RATES: SCRIPTS[Capability.GROUPS],
    Capability.OFFLOAD_ACTIVATIONS: _FLEET.format(settings=_OFFLOADED_CHECKPOINTS),
    Capability.OFFLOAD_HOST: _FLEET.format(settings=_OFFLOADED_CHECKPOINTS),
    Capability.OFFLOAD_OPTIMIZER: _FLEET.format(settings=_OFFLOADED_MOMENTS),
    Capability.OFFLOAD_PARAMETERS: _SHARDED_PARAMETERS,
    Capability.OFFLOAD_DISK: _SAVED_TENSORS,
    Capability.INT8_ROW: _CHANNELS,
    Capability.INT8_COLUMN: _CHANNELS,
    Capability.FAKE_INT8_COLUMN: _AWARE_PROGRAM.format(settings={"weight_quantize_type": "channel_wise_abs_max"}),
    Capability.UINT8_TENSOR: _UNSIGNED,
    Capability.AWARE: _AWARE,
    Capability.CONVERT: _AWARE,
    Capability.INTEGER_PRODUCTS: _PRODUCT,
    Capability.FLOAT8_E4M3FN: _NARROW.format(name="float8_e4m3fn"),
    Capability.FLOAT8_E5M2: _NARROW.format(name="float8_e5m2"),
}
