"""On a CPU no loss of a static O2 program can be built from the model's bfloat16 output."""

import sys

import paddle

paddle.enable_static()
x, label = paddle.static.data("x", [4, 2], "float32"), paddle.static.data("label", [4], "int64")
layer, optimizer = paddle.nn.Linear(2, 3), paddle.optimizer.SGD(0.1)
layer, optimizer = paddle.amp.decorate(models=layer, optimizers=optimizer, level="O2", dtype="bfloat16")
try:
    with paddle.amp.auto_cast(level="O2", dtype="bfloat16"):
        loss = paddle.nn.functional.cross_entropy(layer(x), label)
    seen = f"a loss in {loss.dtype}"
except TypeError as error:
    seen = f"TypeError: {str(error).strip().splitlines()[-1].strip()[:110]}"
print("expected: a loss")
print(f"seen: {seen}")
sys.exit("TypeError" in seen)
