"""Bisection of a sequence whose two ends have different states, where some members may have none.

The sequence is taken to change its state once. Members that cannot be judged are skipped; those next to the change make
the answer a range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

State = Literal["old", "new", "skip"]


@dataclass(frozen=True)
class StateAnswer:
    """The state of a member: that of the first end ("old"), that of the last ("new"), or none, with a reason."""

    state: State
    reason: str = ""


class UnstableEnd(Exception):
    """An end has another state when it is judged again; the arguments are its place and the reason."""


@dataclass(frozen=True)
class Boundary:
    """Where the state changes.

    Attributes:
        old: the last member with the old state.
        new: the first one with the new state.
        skipped: reasons of all members that were asked and have no state, by place.
    """

    old: int
    new: int
    skipped: Mapping[int, str]

    @property
    def between(self) -> Mapping[int, str]:
        """Members without a state between the two, which may be the first with the new state."""
        return {place: reason for place, reason in sorted(self.skipped.items()) if self.old < place < self.new}


def bisect(
    count: int, ask: Callable[[int], StateAnswer], confirm: Callable[[int], StateAnswer] | None = None
) -> Boundary:
    """The boundary in a sequence whose first member has the old state and whose last has the new one.

    Args:
        count: members, at least 2.
        ask: the state of a member, asked at most once for each.
        confirm: judges a member again that is next to the boundary. One whose state differs then is skipped.

    Raises:
        UnstableEnd: an end has another state when it is judged again.
        ValueError: there are fewer than two members.
    """
    if count < 2:
        raise ValueError(f"members to bisect: got {count}, want at least 2")
    states: dict[int, State] = {0: "old", count - 1: "new"}
    skipped: dict[int, str] = {}
    confirmed: set[int] = set()
    while True:
        old = max(place for place, state in states.items() if state == "old")
        new = min(place for place, state in states.items() if state == "new" and place > old)
        waiting = [place for place in range(old + 1, new) if place not in skipped]
        if waiting:
            middle = min(waiting, key=lambda place: (abs(2 * place - old - new), place))
            answer = ask(middle)
        elif confirm is not None and (left := [place for place in (new, old) if place not in confirmed]):
            middle = left[0]
            answer = confirm(middle)
            confirmed.add(middle)
            if answer.state == states[middle]:
                continue
            if middle in (0, count - 1):
                raise UnstableEnd(middle, answer.reason)
            answer = StateAnswer("skip", answer.reason or "another state when it was judged again")
        else:
            return Boundary(old, new, dict(sorted(skipped.items())))
        if answer.state == "skip":
            skipped[middle] = answer.reason
            states.pop(middle, None)
        else:
            states[middle] = answer.state
