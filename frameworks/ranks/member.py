"""The process of a rank: `python -m frameworks.ranks.member COMMANDS LIFELINE`, two inherited file descriptors.

It does one command after the other and ends when the parent says so, or is there no more, or lets go of the lifeline,
whose other end only the parent has. It never ends in order: destructors may wait for ranks that are dead.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, NoReturn

from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.base import Arguments
from frameworks.contract import Stop
from frameworks.ranks.membership import Member
from frameworks.ranks.messages import Answer, Command, Opening, packed


class Servant:
    """What a rank does: its public methods are the commands."""

    def __init__(self) -> None:
        self.opening: Opening
        self.kind: Callable[..., Member]
        self.member: Member
        self.runs: dict[int, Any] = {}

    def load(self, opening: Opening) -> None:
        """Imports the member's module, which may take one rank much longer than another."""
        self.opening = opening
        sys.path.extend(path for path in opening.search if path not in sys.path)
        module, _, name = opening.kind.partition(":")
        self.kind = getattr(import_module(module), name)

    def join(self) -> None:
        """Makes the member, which meets the others."""
        own = self.opening
        self.member = self.kind(own.rank, own.count, own.folder, own.device, own.mode)

    def make(self, run: int, model: Model, recipe: Recipe, weights: Any) -> None:
        """Makes the run's trainer."""
        self.runs[run] = self.member.trainer(model, recipe, weights)

    def ask(self, run: int, verb: str, given: tuple[Arguments, ...], stop: Stop | None = None) -> tuple[Any, ...]:
        """A verb of the run's trainer: what it answers for each rank that this process is.

        With `stop` this process stops so, and None stands for each answer of one that made a call fewer.
        """
        match stop:
            case "exits":
                os._exit(0)
            case "raises":
                raise RuntimeError("this rank raises, as it was asked to")
            case "one call fewer":
                return (None,) * len(given)
        trainer = self.runs[run]
        several = getattr(trainer, "ask", None)
        if several is not None:
            return _counted(tuple(several(verb, given)), len(given), verb)
        if len(given) != 1:
            raise TypeError(f"{type(trainer).__name__} has to have ask(verb, given): its process is {len(given)} ranks")
        return (getattr(trainer, verb)(*given[0].arguments, **given[0].named),)

    def held(self) -> tuple[Any, ...]:
        """The numbers of the runs that are held here, for each rank that this process is."""
        return (tuple(self.runs),) * self.opening.ranks

    def barrier(self) -> None:
        """Waits for the other ranks."""
        self.member.barrier()

    def close(self) -> NoReturn:
        """Ends the process."""
        os._exit(0)


def _counted(answers: tuple[Any, ...], count: int, verb: str) -> tuple[Any, ...]:
    if len(answers) != count:
        raise TypeError(f"{verb} gave {len(answers)} answers for {count} ranks")
    return answers


def answered(servant: Servant, command: Command) -> Answer:
    """Does a command."""
    for run in command.dropped:
        servant.runs.pop(run, None)
    try:
        method, arguments = pickle.loads(command.call)
        returned = getattr(servant, method)(*arguments)
        return Answer(command.number, False, _pickled(returned))
    except Exception as error:
        return Answer(command.number, True, packed(error, traceback.format_exc()))


def _pickled(returned: Any) -> bytes:
    try:
        return pickle.dumps(returned)
    except Exception as error:
        raise RuntimeError(f"the answer cannot be pickled: {type(error).__name__}: {error}") from None


def serve(connection: Connection) -> NoReturn:
    """Answers commands until there is nobody to answer to."""
    servant = Servant()
    try:
        while True:
            command: Command = pickle.loads(connection.recv_bytes())
            connection.send_bytes(pickle.dumps(answered(servant, command)))
    except (EOFError, OSError):
        vanish()
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
        os._exit(leaving.code & 0xFF if isinstance(leaving.code, int) else int(leaving.code is not None))
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def vanish() -> NoReturn:
    """Ends this process and everything that it has started."""
    if os.getpgrp() == os.getpid():
        with suppress(OSError):
            os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _follow(lifeline: int) -> NoReturn:
    with suppress(OSError):
        os.read(lifeline, 1)
    vanish()


def main(commands: int, lifeline: int) -> NoReturn:
    """Serves over the inherited descriptors, which nothing that is started from here inherits."""
    for descriptor in (commands, lifeline):
        os.set_inheritable(descriptor, False)
    Thread(target=_follow, args=(lifeline,), daemon=True).start()
    serve(Connection(commands))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
