"""The commands put together, and what every one of them does with an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

import click

from conformance.cli import commenting, comparing, expecting, exporting, finding, reporting, running, specifying
from conformance.running.identity import suite_version
from frameworks.registry import UnknownFramework
from results.record.files import RecordError, one_line, os_problem


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(suite_version(), prog_name="conformance")
def commands() -> None:
    """Does a training framework do what it promises, and did an upgrade change it?

    \b
    conformance run torch                     judge a framework, write a record
    conformance run --scenario sincos         a founding document's example, end to end
    conformance report results/baselines      set records side by side in one page
    conformance compare OLD.json NEW.json     what an upgrade changed
    conformance export --format ctrf          records for other tools
    conformance spec show scaling.automaton   a clause, its bugs, how each framework does
    conformance frameworks                    which adapters are there
    conformance findings torch                what a framework is known not to do
    conformance expectations confirm RECORD   a version whose known failures a record shows
    conformance issue CLAUSE --framework tf   a report for its issue tracker

    Completion of commands and names in bash (zsh and fish likewise):

    \b
    eval "$(_CONFORMANCE_COMPLETE=bash_source conformance)"

    Exit status: 0, nothing to act on; 1, something is worse or failed; 2, it could not be done, and one line says why.
    """


for command in (
    running.run,
    reporting.report,
    comparing.compare,
    comparing.baseline,
    exporting.export,
    commenting.comment,
    specifying.spec,
    specifying.frameworks,
    finding.findings,
    expecting.expectations,
    finding.issue,
):
    commands.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        status = commands.main(arguments, prog_name="conformance", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.Abort:
        return _refuse("interrupted")
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        place = context.command_path if context else "conformance"
        return _refuse(f"{error.format_message()}; `{place} --help` shows what can be said")
    except (RecordError, UnknownFramework) as error:
        return _refuse(str(error))
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1 if isinstance(error, BrokenPipeError) else _refuse(f"{os_problem(error)}; write the output elsewhere")


def _refuse(problem: str) -> int:
    click.echo(f"conformance: {one_line(problem)}", err=True)
    return 2
