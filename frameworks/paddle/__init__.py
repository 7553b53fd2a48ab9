"""The Paddle adapter.

Paddle takes its thread counts and the threshold of its C++ log from the environment, so they are set before it is
imported, unless the user has set them.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("GLOG_minloglevel", "2")

from frameworks.paddle.framework import PaddleFramework

__all__ = ["PaddleFramework"]
