"""A pytest plugin, `-p tests.mutants.stop`: a clause that has failed once is not tested any further."""

from __future__ import annotations

import pytest

from conformance.inventory import code_of

_broken: set[str] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Leaves the test out if its clause is known to be broken."""
    code = code_of(item.nodeid)
    return True if code is not None and code.clause in _broken else None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes the clause of a failed test."""
    code = code_of(report.nodeid)
    if code is not None and report.failed:
        _broken.add(code.clause)
