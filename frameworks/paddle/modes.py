"""The adapter's modes, as far as the installed Paddle has them."""

from __future__ import annotations

import paddle
from packaging.version import Version

DYGRAPH, STATIC, FORCED = "dygraph", "static", "dygraph-forced-scaler"

_PIR = Version("3.0.0")
"""From here on `auto_cast` works in the static graph; before, it raises there."""

MODES = (DYGRAPH, FORCED) if Version(paddle.__version__) < _PIR else (DYGRAPH, STATIC, FORCED)
