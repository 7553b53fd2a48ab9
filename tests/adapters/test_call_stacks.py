"""Short Python stacks."""

import sys
import traceback

import pytest

from frameworks.call_stacks import short_call_stacks


def test_stacks_are_short_within_and_whole_afterwards() -> None:
    with short_call_stacks():
        (frame,) = traceback.extract_stack()
    assert frame.name == "test_stacks_are_short_within_and_whole_afterwards"
    assert len(traceback.extract_stack()) > 1


def test_a_limit_that_was_set_is_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "tracebacklimit", 2, raising=False)
    with short_call_stacks():
        assert len(traceback.extract_stack()) == 1
    assert sys.tracebacklimit == 2
