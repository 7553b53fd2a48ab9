"""Attempts in the static graph, with Paddle's own calls and without this adapter's guards.

Each function raises unless the technique takes effect. Each call runs in a separate process, since some failures of
Paddle end the process: `python -c "from frameworks.paddle.static.attempts import serve; serve()" DEVICE`.
"""

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import paddle
from paddle.nn.initializer import Constant

from fixtures.arrays import Array

LIMIT_S = 120
ONE = np.ones((1, 2), np.float32)


def serve() -> None:
    """Runs attempts, each in a process forked from this one, which has imported Paddle.

    Each input line is a function, a space and the arguments as JSON. The answer is a line with the wait status of the
    forked process, that of SIGALRM after LIMIT_S seconds.
    """
    for line in sys.stdin:
        child = os.fork()
        if not child:
            signal.alarm(LIMIT_S)
            function, _, arguments = line.partition(" ")
            status = 1
            try:
                os.dup2(os.open(os.devnull, os.O_RDWR), 1)
                globals()[function](StaticProgram(sys.argv[1]), *json.loads(arguments))
                status = 0
            finally:
                os._exit(status)
        print(os.waitpid(child, 0)[1], flush=True)


def linear() -> Any:
    """A linear layer from two values to one, with weights of 1."""
    return paddle.nn.Linear(2, 1, weight_attr=paddle.ParamAttr(initializer=Constant(1.0)), bias_attr=False)


def read(name: str) -> Array:
    """The values of a variable in the global scope."""
    return np.array(paddle.static.global_scope().find_var(name).get_tensor()).ravel()


def low_scope() -> AbstractContextManager[None]:
    """A disabled scope of float16, which `GradScaler` requires."""
    scope: AbstractContextManager[None] = paddle.amp.auto_cast(enable=False, dtype="float16")
    return scope


def decorate_optimizer(layer: Any, optimizer: Any) -> Any:
    """The optimizer, decorated for a float16 scaler."""
    return paddle.amp.decorate(models=layer, optimizers=optimizer, level="O1", dtype="float16")[1]


def any_way(*ways: Callable[[Any, Any], object]) -> bool:
    """Returns whether any function takes effect, each in a separate program."""
    for way in ways:
        inner, outer = paddle.static.Program(), paddle.static.Program()
        try:
            with paddle.static.program_guard(inner, outer):
                if way(inner, outer):
                    return True
        except Exception:  # a way without effect may raise anything
            continue
    return False


class StaticProgram:
    """The default program of this process, with an input `x` and a linear layer `net`."""

    def __init__(self, device: str) -> None:
        warnings.simplefilter("ignore")
        paddle.device.set_device(device)
        paddle.enable_static()
        self.exe = paddle.static.Executor()
        self.x = paddle.static.data("x", [None, 2], "float32")
        self.x.stop_gradient = False
        self.main, self.startup = paddle.static.default_main_program(), paddle.static.default_startup_program()
        self.net = linear()
        self._started = False

    def run(self, fetch: Sequence[Any], value: Array = ONE) -> list[Array]:
        """Runs the program, before the first time also its startup program, and returns these variables."""
        if not self._started:
            self.exe.run(self.startup)
            self._started = True
        return [np.array(output) for output in self.exe.run(feed={"x": value}, fetch_list=fetch)]

    def run_separately(self, inner: Any, outer: Any, fetch: Sequence[Any], **feed: Array) -> None:
        """Runs another program after its startup program, with an input `x` and these inputs."""
        self.exe.run(outer)
        self.exe.run(inner, feed={"x": ONE, **feed}, fetch_list=fetch)

    def minimize(self, layer: Any, optimizer: Any, **settings: Any) -> Any:
        """The loss that a scaler with these settings minimizes."""
        with low_scope():
            loss = layer(self.x).sum()
        scaler = paddle.amp.GradScaler(**settings)
        scaler.minimize(decorate_optimizer(layer, optimizer), scaler.scale(loss))
        return loss


# precision, scaling, optimizers and gradients


def casts(program: StaticProgram, level: str, dtype: str) -> None:
    """A scope of a level casts a linear layer to a format, and the loss trains."""
    with paddle.amp.auto_cast(level=level, dtype=dtype):
        y = program.net(program.x)
        assert str(y.dtype).lower().endswith(dtype), y.dtype
        loss = paddle.nn.functional.cross_entropy(paddle.concat([y, y], -1), paddle.zeros([1], "int64"))
    paddle.optimizer.SGD(1.0).minimize(loss)
    assert np.isfinite(program.run([loss])[0]).all()


def lists(program: StaticProgram) -> None:
    """A user's list keeps an operation wide."""
    with paddle.amp.auto_cast(dtype="bfloat16", custom_black_list={"matmul_v2"}):
        assert str(program.net(program.x).dtype).endswith("float32"), program.net(program.x).dtype
    with paddle.amp.auto_cast(dtype="bfloat16"):
        assert str(program.net(program.x).dtype).endswith("bfloat16"), program.net(program.x).dtype


def dynamic_scaling(program: StaticProgram) -> None:
    """An overflow skips the update and halves the scale."""
    loss = program.minimize(program.net, paddle.optimizer.SGD(1.0), init_loss_scaling=8.0)
    program.run([loss], ONE * np.inf)
    assert read("loss_scaling_0")[0] == 4.0 and (read(program.net.weight.name) == 1.0).all()


def static_scaling(program: StaticProgram) -> None:
    """A constant scale stays and the update is applied."""
    loss = program.minimize(
        program.net, paddle.optimizer.SGD(1.0), init_loss_scaling=8.0, use_dynamic_loss_scaling=False
    )
    program.run([loss])
    assert read("loss_scaling_0")[0] == 8.0 and (read(program.net.weight.name) != 1.0).all()


def scaling_factors(program: StaticProgram) -> None:
    """The scale grows and falls by the user's factors."""
    loss = program.minimize(
        program.net,
        paddle.optimizer.SGD(1.0),
        init_loss_scaling=8.0,
        incr_ratio=4.0,
        decr_ratio=0.25,
        incr_every_n_steps=1,
    )
    program.run([loss])
    assert read("loss_scaling_0")[0] == 32.0
    program.run([loss], ONE * np.inf)
    assert read("loss_scaling_0")[0] == 8.0


def explicit_unscale(program: StaticProgram) -> None:
    """`unscale_` runs between backward and step."""
    with low_scope():
        loss = program.net(program.x).sum()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
    optimizer = decorate_optimizer(program.net, paddle.optimizer.SGD(1.0, parameters=program.net.parameters()))
    optimizer.backward(scaler.scale(loss))
    scaler.unscale_(optimizer)
    program.run([loss])


def two_losses(program: StaticProgram) -> None:
    """An overflow of one of two losses skips both updates."""
    with low_scope():
        losses = [program.net(program.x).sum(), (program.net(program.x) * float("inf")).sum()]
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
    scaled = [scaler.scale(loss) for loss in losses]
    optimizer = decorate_optimizer(program.net, paddle.optimizer.SGD(1.0))
    for loss in scaled:
        scaler.minimize(optimizer, loss)
    program.run(losses)
    assert read("loss_scaling_0")[0] == 4.0 and (read(program.net.weight.name) == 1.0).all()


def scales_after_bfloat16(program: StaticProgram) -> None:
    """A `GradScaler` scales after a bfloat16 scope."""
    with paddle.amp.auto_cast(dtype="bfloat16"):
        loss = program.net(program.x).sum()
    scaled = paddle.amp.GradScaler(init_loss_scaling=8.0).scale(loss)
    assert program.run([scaled])[0] == 16.0


def clips_jointly(program: StaticProgram) -> None:
    """Two optimizers clip by the norm of all their gradients."""
    other = linear()
    loss = (3.0 * program.net(program.x)[:, :1] + 4.0 * other(program.x)).sum()

    def by_optimizers():
        clip = paddle.nn.ClipGradByGlobalNorm(1.0)
        for layer in (program.net, other):
            paddle.optimizer.SGD(1.0, parameters=layer.parameters(), grad_clip=clip).minimize(loss)

    def by_call():
        pairs = paddle.static.append_backward(loss)
        paddle.nn.utils.clip_grad_norm_([parameter for parameter, _ in pairs], 1.0)
        for layer in (program.net, other):
            own = {parameter.name for parameter in layer.parameters()}
            paddle.optimizer.SGD(1.0).apply_gradients([(p, g) for p, g in pairs if p.name in own])

    try:
        by_call()
    except Exception:  # Paddle has no norm of gradients in a program
        by_optimizers()
    program.run([loss])
    moved = np.concatenate([1.0 - read(layer.weight.name) for layer in (program.net, other)])
    assert abs(np.linalg.norm(moved) - 1.0) < 0.001


def scales_float64(program: StaticProgram) -> None:
    """A `GradScaler` takes gradients of a float64 parameter."""
    wide = paddle.create_parameter([1], "float64", default_initializer=Constant(1.0))
    with low_scope():
        loss = (program.net(program.x).sum().astype("float64") * wide).sum()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
    scaler.minimize(decorate_optimizer(program.net, paddle.optimizer.SGD(0.5)), scaler.scale(loss))
    program.run([loss])
    assert read(wide.name)[0] == 0.0


def trains_next_to_constants(program: StaticProgram) -> None:
    """A bfloat16 model trains together with a weight that needs no gradient."""
    other = paddle.nn.Linear(1, 1)
    other.weight.stop_gradient = True
    with paddle.amp.auto_cast(dtype="bfloat16"):
        loss = other(program.net(program.x)).astype("float32").sum()
    paddle.optimizer.SGD(0.5).minimize(loss)
    assert np.isfinite(program.run([loss])[0]).all()


def groups(program: StaticProgram) -> None:
    """Groups of parameters have their own rates."""
    other = linear()
    groups = [{"params": program.net.parameters()}, {"params": other.parameters(), "learning_rate": 0.5}]
    loss = (program.net(program.x) + other(program.x)).sum()
    paddle.optimizer.SGD(1.0, parameters=groups).minimize(loss)
    program.run([loss])
    assert (read(program.net.weight.name) == 0.0).all() and (read(other.weight.name) == 0.5).all()


def low_weights(program: StaticProgram, dtype: str, masters: bool) -> None:
    """Low weights move, with or without masters."""
    optimizer = paddle.optimizer.SGD(0.5)
    program.net, optimizer = paddle.amp.decorate(
        models=program.net, optimizers=optimizer, level="O2", dtype=dtype, master_weight=masters
    )
    with paddle.amp.auto_cast(level="O2", dtype=dtype):
        loss = program.net(program.x).astype("float32").sum()
    optimizer.minimize(loss)
    assert (
        str(program.net.weight.dtype).endswith(dtype)
        and program.run([loss])[0] == 2.0
        and (program.run([loss])[0] == 1.0)
    )
    assert any("master" in name for name in paddle.static.global_scope().local_var_names()) is masters


# accumulation, recomputation, execution and averages


def merged_gradients(program: StaticProgram) -> None:
    """Two runs make one update, by any of Paddle's ways."""
    from paddle.distributed import fleet
    from paddle.distributed.passes import PassContext, new_pass

    def is_merged(minimize, inner, outer):
        x = paddle.static.data("x", [None, 2], "float32")
        layer = linear()
        loss = layer(x).sum()
        minimize(loss, inner, outer)
        program.run_separately(inner, outer, [loss])
        return (read(layer.weight.name) == 1.0).all()

    def by_optimizer(loss, inner, outer):
        paddle.incubate.optimizer.GradientMergeOptimizer(paddle.optimizer.SGD(1.0), 2).minimize(loss)

    def by_fleet(loss, inner, outer):
        strategy = fleet.DistributedStrategy()
        strategy.gradient_merge = True
        strategy.gradient_merge_configs = {"k_steps": 2, "avg": True}
        fleet.init(is_collective=True, strategy=strategy)
        fleet.distributed_optimizer(paddle.optimizer.SGD(1.0), strategy=strategy).minimize(loss)

    def by_pass(loss, inner, outer):
        _, pairs = paddle.optimizer.SGD(1.0).minimize(loss)
        settings = {"k_steps": 2, "avg": True, "params_grads": pairs, "gradient_sync_after_accumulate": True}
        new_pass("auto_parallel_gradient_merge_pass", settings).apply([inner], [outer], PassContext())

    assert any_way(*(partial(is_merged, way) for way in (by_optimizer, by_fleet, by_pass)))


def recompute_operations(program: StaticProgram) -> None:
    """The backward pass repeats operations, by any of Paddle's ways."""
    from paddle.distributed.fleet.utils import recompute
    from paddle.distributed.passes import PassContext, new_pass

    def is_recomputed(minimize, inner, outer):
        x = paddle.static.data("x", [None, 2], "float32")
        layer = linear()
        hidden = recompute(lambda t: paddle.tanh(paddle.tanh(layer(t))), x)
        loss = hidden.sum()
        minimize(loss, hidden, inner, outer)
        program.run_separately(inner, outer, [loss])
        return [op.name() for op in inner.global_block().ops].count("pd_op.tanh") > 2

    def by_call(loss, hidden, inner, outer):
        paddle.optimizer.SGD(1.0).minimize(loss)

    def by_optimizer(loss, hidden, inner, outer):
        optimizer = paddle.incubate.optimizer.RecomputeOptimizer(paddle.optimizer.SGD(1.0))
        optimizer._set_checkpoints([hidden])
        optimizer.minimize(loss)

    def by_pass(loss, hidden, inner, outer):
        paddle.optimizer.SGD(1.0).minimize(loss)
        new_pass("auto_parallel_recompute_pir", {"refined_ops_patterns": []}).apply([inner], [outer], PassContext())

    assert any_way(*(partial(is_recomputed, way) for way in (by_call, by_optimizer, by_pass)))


def segment_calls(program: StaticProgram) -> None:
    """A Python function counts the runs of a segment."""
    calls = []
    hidden = program.net(program.x)
    shown = paddle.static.py_func(lambda value: calls.append(1) or np.asarray(value), hidden, hidden)
    program.run([shown])
    assert calls == [1]


def saved_bytes(program: StaticProgram) -> None:
    """The backward part runs apart from the forward part."""
    loss = program.net(program.x).sum()
    ((_, gradient),) = paddle.static.append_backward(loss)
    program.run([loss])
    assert np.isfinite(program.exe.run(fetch_list=[gradient])[0]).all()


def tf32(program: StaticProgram) -> None:
    """A switch changes the product's rounding."""
    from paddle.base import core

    ones = paddle.full([16, 16], 1.0 + 2.0 ** (-12))
    product = paddle.matmul(ones, ones)
    products = []
    for allowed in (True, False):
        core.set_cublas_switch(allowed)
        products.append(program.exe.run(fetch_list=[product])[0])
    assert not np.array_equal(*products)


def operations(program: StaticProgram) -> None:
    """Operations take low formats."""
    functional = paddle.nn.functional
    for dtype in ("bfloat16", "float16"):
        low = paddle.ones([2, 2]).astype(dtype)
        paddle.einsum("ij,jk->ik", low, low)
        paddle.linalg.norm(low, p=2)
        paddle.var(low)
        paddle.logsumexp(low, axis=-1)
        functional.mse_loss(low, low)
        functional.rms_norm(low, [2])
        functional.batch_norm(low, paddle.zeros([2]), paddle.ones([2]), training=True)


def peak_bytes(program: StaticProgram) -> None:
    """The allocator has a peak."""
    assert paddle.device.max_memory_allocated() > 0


def average(program: StaticProgram) -> None:
    """The average follows the updates."""
    loss = program.net(program.x).sum()
    paddle.optimizer.SGD(1.0).minimize(loss)
    average = paddle.static.ExponentialMovingAverage(0.5)
    average.update()
    program.run([loss])
    with average.apply(program.exe):
        assert (read(program.net.weight.name) == 0.0).all()
    assert (read(program.net.weight.name) == 0.0).all()


# what the static graph refuses


def tensor_rate(program: StaticProgram) -> None:
    """A rate is a tensor."""

    def has_moved(rate, inner, outer):
        x = paddle.static.data("x", [None, 2], "float32")
        layer = linear()
        loss = layer(x).sum()
        paddle.optimizer.Momentum(rate(), 0.0).minimize(loss)
        program.run_separately(inner, outer, [loss], rate=np.array(0.5, "float32"))
        return (read(layer.weight.name) == 0.5).all()

    rates = (lambda: paddle.full([], 0.5), lambda: paddle.static.data("rate", [], "float32"))
    assert any_way(*(partial(has_moved, rate) for rate in rates))


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
        program.run_separately(inner, outer, [loss])
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

    def cast():
        return paddle.cast(paddle.static.data("given", [2], "float32"), name)

    def fetch(inner, codes):
        return program.exe.run(inner, feed={"given": np.ones(2, "float32")}, fetch_list=[codes])

    def by_view(inner, outer):
        return fetch(inner, cast().view("uint8"))[0].dtype == np.uint8

    def by_fetch(inner, outer):
        return len(fetch(inner, cast())) == 1

    assert any_way(by_view, by_fetch)
