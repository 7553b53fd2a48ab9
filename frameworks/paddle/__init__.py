"""The Paddle adapter: one framework for the dynamic graph, another one for the static graph.

Paddle takes its thread counts and the threshold of its C++ log from the environment, so they are set before it is
imported, unless the user has set them.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("GLOG_minloglevel", "2")

from frameworks.paddle.core.settings import MODES, STATIC
from frameworks.paddle.framework import OneGraph, PaddleFramework
from frameworks.paddle.static.framework import StaticFramework

__all__ = ["PaddleFramework", "StaticFramework", "adapter"]


def adapter(device: str = "auto", mode: str | None = None) -> OneGraph:
    """The framework of a mode: the static graph's for "static", else the dynamic graph's.

    Raises:
        MissingDevice: the device is not there.
        ValueError: this version of Paddle has no such mode.
    """
    graph = StaticFramework if mode == STATIC and STATIC in MODES else PaddleFramework
    return graph(device, mode)
