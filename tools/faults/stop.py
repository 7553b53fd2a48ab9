"""A pytest plugin, `-p tools.faults.stop`: a clause that has failed once is not tested any further.

Runs are forked from a process that has imported this module, which reads the clauses and the tests once.
"""

import gc

import pytest

from conformance.spec.clauses import load_clauses
from conformance.test_ids import code_of, inventory
from results.record.model import Outcome

inventory()
load_clauses()
gc.freeze()


_FAILURES = {Outcome.FAIL.value, Outcome.MISDECLARED.value}
_broken: set[str] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Leaves the test out if its clause is known to be broken.

    The fixtures that the previous test shares with this one are still set up. They are torn down here, as the next test
    may be from another file.
    """
    code = code_of(item.nodeid)
    if code is None or code.clause not in _broken:
        return None
    item.session._setupstate.teardown_exact(nextitem)
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes the clause of a test whose outcome shows the fault; an error of a fault's own shows nothing."""
    code = code_of(report.nodeid)
    if code is not None and dict(report.user_properties).get("outcome") in _FAILURES:
        _broken.add(code.clause)
