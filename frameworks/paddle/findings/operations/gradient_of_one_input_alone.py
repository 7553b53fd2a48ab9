"""The backward kernel of solve also writes the gradient of a matrix that needs none: the process ends by a signal."""

import subprocess
import sys

PROGRAM = """
import paddle
matrix = paddle.to_tensor([[2.0, 0.0], [0.0, 4.0]])
vector = paddle.to_tensor([[1.0], [1.0]], stop_gradient=False)
paddle.linalg.solve(matrix, vector).sum().backward()
print(vector.grad.flatten().tolist())
"""

run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
seen = f"the process ended by signal {-run.returncode}" if run.returncode < 0 else run.stdout.strip()
print("expected: [0.5, 0.25]")
print(f"seen: {seen}")
sys.exit(seen != "[0.5, 0.25]")
