"""Attempts of precision, scaling, optimizers and gradients.

Each function makes Paddle's own calls, without this adapter's guards, in a separate process, and raises unless the
technique takes effect.
"""

import numpy as np
import paddle
from paddle.nn.initializer import Constant

from frameworks.paddle.static.attempts.program import ONE, StaticProgram, decorate_optimizer, linear, low_scope, read


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
    """The scale grows and falls by factors of the user's."""
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
    except Exception:
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
