"""Attempts of accumulation, recomputation, execution and checkpoints.

Each function makes Paddle's own calls, without this adapter's guards, in a separate process, and raises unless the
technique takes effect.
"""

import numpy as np
import paddle

from frameworks.paddle.static.attempts.program import ONE, StaticProgram, any_way, linear, read


def merged_gradients(program: StaticProgram) -> None:
    """Two runs make one update, by any of Paddle's ways."""
    from paddle.distributed import fleet
    from paddle.distributed.passes import PassContext, new_pass

    def is_merged(inner, outer, minimize):
        x = paddle.static.data("x", [None, 2], "float32")
        layer = linear()
        loss = layer(x).sum()
        minimize(loss, inner, outer)
        program.exe.run(outer)
        program.exe.run(inner, feed={"x": ONE}, fetch_list=[loss])
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

    assert any_way(
        *(lambda inner, outer, way=way: is_merged(inner, outer, way) for way in (by_optimizer, by_fleet, by_pass))
    )


def recompute_operations(program: StaticProgram) -> None:
    """The backward pass repeats operations, by any of Paddle's ways."""
    from paddle.distributed.fleet.utils import recompute
    from paddle.distributed.passes import PassContext, new_pass

    def is_recomputed(inner, outer, minimize):
        x = paddle.static.data("x", [None, 2], "float32")
        layer = linear()
        hidden = recompute(lambda t: paddle.tanh(paddle.tanh(layer(t))), x)
        loss = hidden.sum()
        minimize(loss, hidden, inner, outer)
        program.exe.run(outer)
        program.exe.run(inner, feed={"x": ONE}, fetch_list=[loss])
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

    assert any_way(
        *(lambda inner, outer, way=way: is_recomputed(inner, outer, way) for way in (by_call, by_optimizer, by_pass))
    )


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
        (
            paddle.einsum("ij,jk->ik", low, low),
            paddle.linalg.norm(low, p=2),
            paddle.var(low),
            paddle.logsumexp(low, axis=-1),
        )
        (
            functional.mse_loss(low, low),
            functional.rms_norm(low, [2]),
            functional.batch_norm(low, paddle.zeros([2]), paddle.ones([2]), training=True),
        )


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
