"""Program.set_state_dict shares memory with the program that gave the state: that program's next update moves both."""

import sys

import paddle

paddle.enable_static()
weight = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
paddle.optimizer.SGD(0.5).minimize(weight.sum())
program, executor = paddle.static.default_main_program(), paddle.static.Executor(paddle.CPUPlace())
giver, taker = paddle.static.Scope(), paddle.static.Scope()
for scope in (giver, taker):
    with paddle.static.scope_guard(scope):
        executor.run(paddle.static.default_startup_program())
program.set_state_dict(program.state_dict(scope=giver), taker)
with paddle.static.scope_guard(giver):
    executor.run(program)
seen = float(taker.find_var(weight.name).get_tensor().__array__()[0])
print("expected: weight 1.0, which the program had when its state was taken")
print(f"seen: weight {seen}")
sys.exit(seen != 1.0)
