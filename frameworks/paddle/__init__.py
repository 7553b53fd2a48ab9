"""The Paddle adapter. Paddle takes its thread counts from the environment, so they are pinned before it is imported."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

from frameworks.paddle.framework import PaddleFramework

__all__ = ["PaddleFramework"]
