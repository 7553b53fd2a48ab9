"""The adapter's modes that the installed Paddle supports."""

import paddle
from packaging.version import Version

from frameworks.contract import Attempt

DYGRAPH, STATIC, FORCED, DATA_PARALLEL = "dygraph", "static", "dygraph-forced-scaler", "data-parallel"

_PIR = Version("3.0.0")
"""From here on `auto_cast` works in the static graph; before, it raises there."""

_OLD = Version(paddle.__version__) < _PIR
MODES = (DYGRAPH, FORCED, DATA_PARALLEL) if _OLD else (DYGRAPH, STATIC, FORCED, DATA_PARALLEL)


def in_dynamic_mode(attempt: Attempt) -> bool:
    """What an attempt in the dynamic graph says, in either graph."""
    with paddle.base.dygraph.guard():
        return attempt()
