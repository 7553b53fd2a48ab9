"""Decides whether a record is complete, partial or interrupted, from the tests judged and the tests in the suites."""

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

import pytest

from conformance.spec.findings import Workaround
from conformance.test_ids.inventory import code_of, id_of, inventory
from frameworks.ways import Way
from results.record.files import one_line
from results.record.model import Status

_OUTPUT = "conformance-left-out"
_NAMED = 3
_PARAMETERS = {"workaround": Workaround, **dict.fromkeys(("way", "rank_way", "file_way", "rate_way"), Way)}
"""Classes of parameters of which a framework may have none."""


def _some(names: Sequence[str]) -> str:
    text = ", ".join(name.partition("/")[2] for name in names[:_NAMED])
    return one_line(f"{text}{', ...' if names[_NAMED:] else ''}")


class Completeness:
    """Plugin of every process: which tests were collected, and which were deselected.

    Under pytest-xdist each worker reports its deselected tests to the controller when it ends.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.tests: set[str] = set()
        self._left_out: list[list[str]] | None = None  # test functions not collected, and tests deselected

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Compares the collected tests with the inventory, and with the tests that every plugin has selected."""
        collected = {item.nodeid: _has_parameters(item) for item in items if code_of(item.nodeid) is not None}
        items[:] = [item for item in items if collected.get(item.nodeid, True)]
        yield
        functions = {code.function for test in collected if (code := code_of(test))}
        left = {item.nodeid for item in items}
        self.tests |= {id_of(test) for test in left & collected.keys()}
        self._left_out = [
            sorted(code.id for name, code in inventory().items() if name not in functions),
            sorted(id_of(test) for test, judged in collected.items() if judged and test not in left),
        ]
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_OUTPUT] = self._left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """A worker has collected what all of them share."""
        self.tests.update(id_of(test) for test in ids if code_of(test) is not None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended; one that died reports nothing."""
        output: Mapping[str, Any] = getattr(node, "workeroutput", None) or {}
        self._left_out = output.get(_OUTPUT, self._left_out)

    def status(self, judged: Collection[str], ended: bool, selection: str) -> tuple[Status, list[str]]:
        """The status of the run's record, and notes on what it lacks.

        Args:
            judged: tests that have a verdict.
            ended: whether the session was completed.
            selection: command-line words that selected tests, or "".
        """
        kinds = ("test functions were not collected", "tests were deselected")
        parts = zip(kinds, self._left_out or (), strict=False)
        notes = [f"{len(names)} {what} ({_some(names)})" for what, names in parts if names]
        if selection.startswith("--tests=") and self._left_out is not None:
            left = len(self._left_out[1])
            notes = [f"{selection}: {len(self.tests)} of {len(self.tests) + left} tests"]
        unjudged = sorted(self.tests.difference(judged))
        if unjudged:
            notes.insert(0, f"{len(unjudged)} of {len(self.tests)} collected tests were not judged ({_some(unjudged)})")
        if unjudged or not ended or self._left_out is None:
            return "interrupted", notes
        return ("partial" if selection or notes else "complete"), notes


def _has_parameters(item: pytest.Item) -> bool:
    """Whether the test has a parameter: without any workaround or way pytest generates one test and skips it."""
    call = getattr(item, "callspec", None)
    wanted = _PARAMETERS.keys() & {*getattr(item, "fixturenames", ())}
    return all(call is not None and isinstance(call.params.get(name), _PARAMETERS[name]) for name in wanted)
