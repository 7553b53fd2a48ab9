"""DataParallel reduces one backward pass of a forward pass: a second one adds each rank's own gradient to the mean."""

import sys
import tempfile
from pathlib import Path

import paddle
from paddle import distributed


def train(folder: str) -> None:
    distributed.init_parallel_env()
    rank = distributed.get_rank()
    layer = paddle.nn.Linear(1, 2, bias_attr=False)
    parallel = paddle.DataParallel(layer)
    outputs = parallel(paddle.full([1, 1], 1.0 + 2.0 * rank))
    outputs[0, 0].backward(retain_graph=True)
    outputs[0, 1].backward()
    Path(folder, str(rank)).write_text(str(layer.weight.grad.tolist()))


if __name__ == "__main__":
    print("expected: [[2.0, 2.0]] on both ranks, the mean of 1 and 3 for either loss")
    with tempfile.TemporaryDirectory() as folder:
        distributed.spawn(train, (folder,), nprocs=2, backend="gloo")
        seen = [Path(folder, str(rank)).read_text() for rank in range(2)]
    print("seen:", *seen)
    sys.exit(0 if seen == ["[[2.0, 2.0]]"] * 2 else 1)
