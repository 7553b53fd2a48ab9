"""Attempts of what the static graph refuses.

Each function makes Paddle's own calls, without this adapter's guards, in a separate process, and raises unless the
technique takes effect.
"""

from typing import Any

import numpy as np
import paddle

from frameworks.paddle.static.attempts.program import ONE, StaticProgram, any_way, linear, read


def tensor_rate(program: StaticProgram) -> None:
    """A rate is a tensor."""

    def has_moved(rate, inner, outer):
        x = paddle.static.data("x", [None, 2], "float32")
        layer = linear()
        loss = layer(x).sum()
        paddle.optimizer.Momentum(rate(), 0.0).minimize(loss)
        program.exe.run(outer)
        program.exe.run(inner, feed={"x": ONE, "rate": np.array(0.5, "float32")}, fetch_list=[loss])
        return (read(layer.weight.name) == 0.5).all()

    rates = (lambda: paddle.full([], 0.5), lambda: paddle.static.data("rate", [], "float32"))
    assert any_way(*(lambda inner, outer, rate=rate: has_moved(rate, inner, outer) for rate in rates))


def fleet_offload(program: StaticProgram, settings: dict[str, Any]) -> None:
    """A strategy of fleet copies memory."""
    from paddle.distributed import fleet

    strategy = fleet.DistributedStrategy()
    loss = paddle.tanh(program.net(program.x)).sum()
    for name, value in settings.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    fleet.distributed_optimizer(paddle.optimizer.Adam(0.5), strategy=strategy).minimize(loss)
    program.run([loss])
    assert any("memcpy" in op.name() for op in program.main.global_block().ops)


def saved_tensors(program: StaticProgram) -> None:
    """Hooks see saved tensors."""
    kept = []
    with paddle.autograd.saved_tensors_hooks(lambda value: kept.append(value) or value, lambda value: value):
        loss = paddle.tanh(program.net(program.x)).sum()
        paddle.optimizer.SGD(0.5).minimize(loss)
        program.run([loss])
    assert kept


def sharded_parameters(program: StaticProgram) -> None:
    """Sharded parameters are offloaded."""
    from paddle.distributed.sharding import group_sharded_parallel

    optimizer = paddle.optimizer.AdamW(parameters=program.net.parameters())
    program.net, optimizer, _ = group_sharded_parallel(program.net, optimizer, "p_g_os", offload=True)
    loss = program.net(program.x).sum()
    optimizer.minimize(loss)
    program.run([loss])


def qat_program(program: StaticProgram, settings: dict[str, Any]) -> None:
    """A program trains with fake quantizers."""
    from paddle.static.quantization.quanter import quant_aware

    loss = program.net(program.x).sum()
    settings = {"quantize_op_types": ["matmul_v2", "matmul"], **settings}
    quantized_program = quant_aware(program.main, paddle.CPUPlace(), settings, for_test=False)
    paddle.optimizer.SGD(0.5).minimize(loss)
    program.exe.run(program.startup)
    program.exe.run(quantized_program, feed={"x": ONE}, fetch_list=[loss])


def channel_codes(program: StaticProgram) -> None:
    """Weights are saved as codes by channel."""
    import os
    import tempfile

    from paddle.static.quantization import WeightQuantization

    hidden = program.net(program.x)
    program.exe.run(program.startup)
    with tempfile.TemporaryDirectory() as folder:
        paddle.static.save_inference_model(folder + "/run", [program.x], [hidden], program.exe)
        quantizer = WeightQuantization(folder, "run.json", "run.pdiparams")
        quantizer.quantize_weight_to_int(folder + "/codes", weight_quantize_type="channel_wise_abs_max")
        assert os.listdir(folder + "/codes")


def qat_layers(program: StaticProgram) -> None:
    """QAT layers train, evaluate and convert, by any of Paddle's ways."""
    from paddle.quantization import QAT, QuantConfig
    from paddle.quantization.quanters import FakeQuanterWithAbsMaxObserver
    from paddle.static.quantization.quanter import quant_aware

    technique = QAT(QuantConfig(activation=FakeQuanterWithAbsMaxObserver(), weight=FakeQuanterWithAbsMaxObserver()))

    def qat():
        return technique.quantize(paddle.nn.Sequential(linear()), inplace=True)

    def make_input():
        return paddle.static.data("x", [None, 2], "float32")

    def by_layers(inner, outer):
        with paddle.utils.unique_name.guard():
            loss = qat()(make_input()).sum()
            paddle.optimizer.SGD(0.5).minimize(loss)
        program.exe.run(outer)
        program.exe.run(inner, feed={"x": ONE}, fetch_list=[loss])
        shown = paddle.static.Program()
        with paddle.utils.unique_name.guard(), paddle.static.program_guard(shown, paddle.static.Program()):
            evaluated = qat()
            evaluated.eval()
            outputs = evaluated(make_input())
        program.exe.run(shown, feed={"x": ONE}, fetch_list=[outputs])
        return technique.convert(evaluated, inplace=True) is not None

    def by_program(inner, outer):
        paddle.optimizer.SGD(0.5).minimize(linear()(make_input()).sum())
        return quant_aware(inner, paddle.CPUPlace(), for_test=False) is not None

    assert any_way(by_layers, by_program)


def integer_product(program: StaticProgram) -> None:
    """int8 matrices multiply exactly."""
    product = paddle.matmul(paddle.full([2, 16], 127, "int8"), paddle.full([16, 2], 127, "int8"))
    assert (program.exe.run(fetch_list=[product.astype("int32")])[0] == 16 * 127 * 127).all()


def narrow_codes(program: StaticProgram, name: str) -> None:
    """The codes of a cast to a narrow format can be read."""

    def by_view(inner, outer):
        values = paddle.static.data("given", [2], "float32")
        codes = paddle.cast(values, name).view("uint8")
        return program.exe.run(inner, feed={"given": np.ones(2, "float32")}, fetch_list=[codes])[0].dtype == np.uint8

    def by_fetch(inner, outer):
        values = paddle.static.data("given", [2], "float32")
        codes = paddle.cast(values, name)
        return len(program.exe.run(inner, feed={"given": np.ones(2, "float32")}, fetch_list=[codes])) == 1

    assert any_way(by_view, by_fetch)
