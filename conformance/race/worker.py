"""A racing process: `python -m conformance.race.worker FRAMEWORK DEVICE MODE FIXTURE`, driven over its pipes.

Each line of standard input names a work and a count. Each is answered by a line of JSON on what was standard output,
with `value`, or with `refused` and the reason. Works are `load` (the processor's time of importing the framework),
`first`, `kinds` and those that `kinds` lists; times are in nanoseconds. What a framework prints goes to standard error.
The process ends at the end of its input.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from time import process_time_ns
from typing import Any, TextIO

import numpy as np

from conformance.race.works import TimedWork
from frameworks.contract import MissingDevice
from frameworks.registry import UnknownFramework, load


def serve(name: str, device: str, mode: str, fixture: str, answers: TextIO) -> None:
    """Answers every line of standard input."""
    works: TimedWork | None = None

    def loaded() -> dict[str, Any]:
        nonlocal works
        begin = process_time_ns()
        framework = load(name, device, mode or None)
        spent = process_time_ns() - begin
        works = TimedWork(framework, fixture)
        place = f"{framework.device} {framework.mode}"
        return {"value": spent, "version": framework.version(), "numpy": np.__version__, "place": place}

    def measured(what: str, count: int) -> dict[str, Any]:
        if works is None:
            raise RuntimeError("load comes first")
        if what == "kinds":
            return {"kinds": works.kinds()}
        if what == "first":
            return {"value": works.first()}
        work: Callable[[int], int] = getattr(works, what)
        return {"value": work(count)}

    _answer(answers, {"ready": os.getpid()})
    for line in sys.stdin:
        what, _, count = line.strip().partition(" ")
        try:
            _answer(answers, loaded() if what == "load" else measured(what, int(count or 1)))
        except (UnknownFramework, MissingDevice, ValueError) as error:
            _answer(answers, {"refused": " ".join(str(error).split())})
        except Exception as error:
            _answer(answers, {"refused": f"{type(error).__name__}: {' '.join(str(error).split())}"})


def _answer(answers: TextIO, document: dict[str, Any]) -> None:
    answers.write(json.dumps(document) + "\n")
    answers.flush()


def main(name: str, device: str, mode: str, fixture: str) -> None:
    """Serves on a copy of standard output, for the framework's own output must not be read as an answer."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        serve(name, device, mode, fixture, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
