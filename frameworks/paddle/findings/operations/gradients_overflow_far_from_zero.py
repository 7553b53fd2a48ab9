"""The gradient of celu at 100, which is 1, comes out as NaN: an exponential overflows."""

import sys

import paddle

x = paddle.to_tensor([100.0], stop_gradient=False)
paddle.nn.functional.celu(x).backward()
seen = float(x.grad)
print("expected: 1.0")
print(f"seen: {seen}")
sys.exit(seen != 1.0)
