"""The float32 gradient of sinc near 0 is far from -pi^2 x / 3."""

import sys

import paddle

x = paddle.to_tensor([2.0**-20], stop_gradient=False)
paddle.sinc(x).backward()
seen = float(x.grad)
print("expected: -0.000003")
print(f"seen: {seen:.6f}")
sys.exit(abs(seen) > 1e-3)
