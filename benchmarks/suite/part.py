"""A pytest plugin that runs the tests of some clauses only: a share of those selected, drawn in a fixed order.

A larger share holds every clause of a smaller one.
"""

from __future__ import annotations

import os
import random

import pytest

from conformance.inventory.tests import code_of

SHARE = "SUITE_SHARE"
"""Environment variable with the share, 0 to 1."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the tests of the other clauses out."""
    clause = {item.nodeid: code.clause for item in items if (code := code_of(item.nodeid))}
    order = sorted(set(clause.values()))
    random.Random(0).shuffle(order)
    kept = set(order[: round(float(os.environ[SHARE]) * len(order))])
    config.hook.pytest_deselected(items=[item for item in items if clause.get(item.nodeid) not in kept])
    items[:] = [item for item in items if clause.get(item.nodeid) in kept]
