"""A pytest plugin that ends the process where the first test would begin, so that its life is the start-up."""

from __future__ import annotations

import os
from typing import NoReturn


def pytest_runtest_logstart() -> NoReturn:
    """Ends the process, without the work of an orderly end."""
    os._exit(0)
