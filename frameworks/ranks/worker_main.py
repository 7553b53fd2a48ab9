"""The process of a rank: `python -m frameworks.ranks.worker_main COMMANDS LIFELINE`, with two inherited descriptors.

The process executes commands until its parent ends it, dies, or closes the lifeline, a pipe whose other end only the
parent has. It exits without cleanup, since destructors may wait for dead ranks.
"""

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
from frameworks.ranks.messages import Answer, Command, Opening, RankWorker, pickle_error


class CommandHandler:
    """The commands of a rank process; each public method is one."""

    def __init__(self) -> None:
        self.opening: Opening
        self.kind: Callable[..., RankWorker]
        self.member: RankWorker
        self.runs: dict[int, Any] = {}

    def load(self, opening: Opening) -> None:
        """Imports the `RankWorker` class. One rank may take much longer than another, so that this precedes `join`."""
        self.opening = opening
        sys.path.extend(path for path in opening.search if path not in sys.path)
        module, _, name = opening.kind.partition(":")
        self.kind = getattr(import_module(module), name)

    def join(self) -> None:
        """Creates the `RankWorker`, which connects to the other ranks."""
        own = self.opening
        self.member = self.kind(own.rank, own.count, own.folder, own.device, own.mode)

    def make(self, run: int, model: Model, recipe: Recipe, weights: Any) -> None:
        """Makes the run's trainer."""
        self.runs[run] = self.member.trainer(model, recipe, weights)

    def ask(self, run: int, verb: str, arguments: tuple[Arguments, ...], stop: Stop | None = None) -> tuple[Any, ...]:
        """Calls a method of the run's trainer; returns one result for each rank of this process.

        With `stop` the process fails in that way; the results are None if it skips the call.
        """
        match stop:
            case "exits":
                os._exit(0)
            case "raises":
                raise RuntimeError("this rank raises on request")
            case "one call fewer":
                return (None,) * len(arguments)
        trainer = self.runs[run]
        ask_ranks = getattr(trainer, "ask", None)
        if ask_ranks is not None:
            answers = tuple(ask_ranks(verb, arguments))
            if len(answers) != len(arguments):
                raise TypeError(f"{verb}: got {len(answers)} results, want one for each of {len(arguments)} ranks")
            return answers
        if len(arguments) != 1:
            name = type(trainer).__name__
            raise TypeError(f"{name} needs ask(verb, arguments): its process has {len(arguments)} ranks")
        return (getattr(trainer, verb)(*arguments[0].arguments, **arguments[0].named),)

    def call(self, function: str, arguments: tuple[Any, ...]) -> Any:
        """Calls a function of a module."""
        module, _, name = function.partition(":")
        return getattr(import_module(module), name)(*arguments)

    def run_numbers(self) -> tuple[Any, ...]:
        """The numbers of the existing runs, once for each rank of this process."""
        return (tuple(self.runs),) * self.opening.ranks

    def barrier(self) -> None:
        """Waits for the other ranks."""
        self.member.barrier()

    def close(self) -> NoReturn:
        """Ends the process."""
        os._exit(0)


def execute_command(handler: CommandHandler, command: Command) -> Answer:
    """Executes a command and returns its answer."""
    for run in command.dropped:
        handler.runs.pop(run, None)
    try:
        method, arguments = pickle.loads(command.call)
        returned = getattr(handler, method)(*arguments)
        return Answer(command.number, False, _pickle_result(returned))
    except Exception as error:
        return Answer(command.number, True, pickle_error(error, traceback.format_exc()))


def _pickle_result(returned: Any) -> bytes:
    try:
        return pickle.dumps(returned)
    except Exception as error:
        raise RuntimeError(f"the result cannot be pickled: {type(error).__name__}: {error}") from None


def serve(connection: Connection) -> NoReturn:
    """Executes commands until the parent is gone."""
    handler = CommandHandler()
    try:
        while True:
            command: Command = pickle.loads(connection.recv_bytes())
            connection.send_bytes(pickle.dumps(execute_command(handler, command)))
    except (EOFError, OSError):  # the parent is gone
        exit_with_descendants()
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
        os._exit(leaving.code & 0xFF if isinstance(leaving.code, int) else int(leaving.code is not None))
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def exit_with_descendants() -> NoReturn:
    """Ends this process and its descendants."""
    if os.getpgrp() == os.getpid():
        with suppress(OSError):  # the process ends below in any case
            os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _wait_for_parent(lifeline: int) -> NoReturn:
    with suppress(OSError):  # as the end of the file: the parent is gone
        os.read(lifeline, 1)
    exit_with_descendants()


def main(commands: int, lifeline: int) -> NoReturn:
    """Serves over the inherited descriptors, which child processes do not inherit."""
    for descriptor in (commands, lifeline):
        os.set_inheritable(descriptor, False)
    Thread(target=_wait_for_parent, args=(lifeline,), daemon=True).start()
    serve(Connection(commands))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
