"""The command `conformance`: its commands, grouped by task, and `main`, which runs one and handles its errors."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from typing import cast

import click

from conformance.runner.subprocesses import ending_signals, harmless
from frameworks.registry import UnknownFramework
from results.record.files import RecordError, one_line, os_problem


@dataclass(frozen=True)
class Entry:
    """A command: its name, MODULE:NAME of its click command within this package, and its purpose in one line."""

    name: str
    function: str
    purpose: str


SECTIONS: Mapping[str, tuple[Entry, ...]] = {
    "Start": (
        Entry("quickstart", "start:quickstart", "Demonstrate the suite in half a minute, without a framework."),
        Entry("new", "start:new", "Create a training loop to judge, or an adapter."),
        Entry("install", "start:install", "Install frameworks, at the locked or at other versions."),
        Entry("doctor", "start:doctor", "Check whether a run can work here."),
        Entry("spec", "spec:spec", "List, search and show clauses."),
        Entry("ways", "spec:ways", "List the public calls of a technique that a run can choose."),
    ),
    "Run the suites": (
        Entry("run", "run:run", "Run the suites on a framework and write a record, or run a scenario."),
        Entry("judge-model", "run:judge_model", "Judge a model without an adapter, or all of a library."),
    ),
    "Read records": (
        Entry("table", "records:table", "Show outcomes by family, or one word for each clause."),
        Entry("report", "records:report", "Write one HTML page."),
        Entry("compare", "records:compare", "Show what changed between two records, or two sets of records."),
    ),
    "Compare versions": (
        Entry("sweep", "sweep:sweep", "Judge many versions of frameworks and companions, each in an environment."),
        Entry("history", "sweep:history", "Show what each clause does in each version, and where it changed."),
        Entry("bisect", "bisect:bisect_command", "Find the release with which a clause began to fail, or to hold."),
        Entry("curves", "curves:curves", "Tell whether two runs of a program of yours are the same training."),
        Entry("race", "sweep:race_command", "Measure whether a version is slower than another, or takes more memory."),
    ),
    "Act on failures": (
        Entry("findings", "spec:findings", "List the known defects of a framework, with reproducers."),
        Entry("issue", "spec:issue", "Draft an upstream issue for a known failure."),
        Entry("accept", "records:accept", "Make a record's failures known ones, or the record the baseline."),
    ),
}
"""Commands by heading of the help."""


class Commands(click.Group):
    """Imports a command when it is used, so that help and tables start without NumPy."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        return [entry.name for entries in SECTIONS.values() for entry in entries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with this name, None if there is none."""
        functions = {entry.name: entry.function for entries in SECTIONS.values() for entry in entries}
        if cmd_name not in functions:
            return None
        module, _, attribute = functions[cmd_name].partition(":")
        return cast(click.Command, getattr(import_module(f"conformance.cli.{module}"), attribute))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names.

        Raises:
            click.UsageError: there is no such command; the message suggests a similar one.
        """
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            near = get_close_matches(args[0], names, 1)
            ctx.fail(f"No such command {args[0]!r}{f'. Did you mean {near[0]!r}?' if near else ''}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section of the help for each task."""
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(entry.name, entry.purpose) for entry in entries], col_max=14)


def _print_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        from conformance.runner.identity import suite_version

        click.echo(f"conformance, version {suite_version()}")
        context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
def commands() -> None:
    """Check that a training framework does what it promises, and see what an upgrade changed.

    \b
    conformance run torch                  run the suites on a framework and write a record
    conformance table                      show the results of the last runs
    conformance compare OLD NEW            show what an upgrade changed
    conformance report results/baselines   write one HTML page of several records

    Shell completion in bash (similarly in zsh and fish):

    \b
    eval "$(_CONFORMANCE_COMPLETE=bash_source conformance)"

    Exit status: 0, nothing needs action; 1, a failure or a regression; 2, an error, with the reason in one line.
    """


def main(arguments: Sequence[str] | None = None, group: click.Command = commands, program: str = "conformance") -> int:
    """Run one command of a group, by default with this process's arguments; return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    with harmless():
        return _run(arguments, group, program)


def _run(arguments: Sequence[str] | None, group: click.Command, program: str) -> int:
    try:
        with ending_signals():
            status = group.main(arguments, prog_name=program, standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.Abort:
        return _refuse("interrupted")
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else _command_path(arguments, group, program)
        return _refuse(f"{error.format_message().rstrip('.')}; `{command} --help` shows the arguments")
    except click.ClickException as error:
        return _refuse(error.format_message())
    except (RecordError, UnknownFramework) as error:
        return _refuse(str(error))
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 1
        where = f"{error.filename}: " if error.filename else ""
        return _refuse(f"{where}{os_problem(error)}; choose another place")


def _command_path(arguments: Sequence[str] | None, group: click.Command, program: str) -> str:
    """Return the program's name, followed by the command if the arguments begin with one."""
    command = next(iter(sys.argv[1:] if arguments is None else arguments), "")
    names = group.list_commands(click.Context(group)) if isinstance(group, click.Group) else []
    return f"{program} {command}" if command in names else program


def _refuse(problem: str) -> int:
    click.echo(f"conformance: {one_line(problem)}", err=True)
    return 2
