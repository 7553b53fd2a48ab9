"""The process that runs the programs of a package; its arguments are FILE OUTPUT SHARE FIRST KIND [CRASHED...]."""

import importlib
import json
import os
import signal
import sys
import types
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any, TextIO

from conformance.fingerprints.cases import (
    Kind,
    Package,
    Parameter,
    PublicCallable,
    find_callables,
    load_package,
    option_texts,
    other_arguments,
    required_arguments,
    show_default,
    write_program,
)
from conformance.fingerprints.values import describe

CASE_LIMIT_S = 20
"""Limit of a program, in seconds of processors; a busy machine ends none."""


class OutOfTime(BaseException):
    """A program took more than its limit."""


def _raise_out_of_time(*_: object) -> None:
    raise OutOfTime


class Worker:
    """Runs programs in this process, and writes a line of JSON before and after each."""

    def __init__(self, package: Package, output: TextIO, crashed: Collection[str], *, same_only: bool) -> None:
        self._same_only = same_only
        self.package, self._output, self._crashed, self._name = package, output, crashed, ""
        self._before = compile(package.before, "before", "exec")
        sys.modules["program"] = module = types.ModuleType("program")
        self._scope = vars(module)
        exec(self._before, {})  # its imports have no limit of time: one cut short leaves half a module

    def _write(self, *line: Any) -> None:
        self._output.write(json.dumps(line) + "\n")
        self._output.flush()

    def run(self, key: str, program: str) -> bool:
        """Run a program, write its outcome under a key, and return whether it ended without an exception."""
        if f"{self._name} {key}" in self._crashed:
            return False
        self._write("start", key)
        scope = self._scope
        scope.clear()
        scope["__name__"] = "program"
        signal.setitimer(signal.ITIMER_PROF, CASE_LIMIT_S)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                exec(self._before, {})
                exec(compile(program, "program", "exec"), scope)
                categories = [warning.category.__name__ for warning in caught]
            structure, numbers = describe(scope.get("result"), categories)
        except OutOfTime:
            return False
        except (Exception, SystemExit) as error:
            self._write("end", key, f"!{type(error).__name__}", "")
            return False
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        self._write("end", key, structure, numbers)
        return True

    def drive(self, candidate: PublicCallable, kind: Kind) -> None:
        """Run the programs of a callable: by required arguments that it takes, by others, with options, in variants."""
        self._name, parameters = candidate.name, candidate.parameters
        for arguments in required_arguments(self.package, kind, parameters):
            program = write_program(candidate, kind.program, arguments)
            if self.run(_key(arguments), program):
                break
        else:
            return
        calls = [(arguments, False)]
        if not self._same_only:
            for changed in other_arguments(kind, parameters, arguments):
                self.run(_key(changed), write_program(candidate, kind.program, changed))
        for parameter in parameters:
            if not kind.needs(parameter) and not parameter.is_positional:
                for text in self._option_texts(kind, parameter):
                    changed = [*arguments, (parameter.name, text)]
                    if self.run(_key(changed), write_program(candidate, kind.program, changed)):
                        calls.append((changed, True))
        for changed, is_option in calls:
            for variant in kind.variants:
                if self._same_only and not variant.is_same:
                    continue
                program = variant.apply(kind.program)
                if program != kind.program and (variant.with_options or not is_option):
                    self.run(f"{_key(changed)} # {variant.name}", write_program(candidate, program, changed))

    def _option_texts(self, kind: Kind, parameter: Parameter) -> list[str]:
        """Return the expressions for an option; where only equal results matter, those of equal ones."""
        texts = option_texts(self.package, kind, parameter)
        if self._same_only and not any(variant.is_same and variant.with_options for variant in kind.variants):
            default = "" if self.package.is_deterministic else show_default(parameter.default)
            return [text for text in texts if text == default]
        return texts


def _key(arguments: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name}={text}" if name else text for name, text in arguments)


def main(argv: list[str]) -> None:
    """Run the programs of the callables from index FIRST on; of a KIND that is not "" those that must agree.

    SHARE is "0" or "1" for every second callable, "" for all.
    """
    path, output, share, first, only, *crashed = argv
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    signal.signal(signal.SIGPROF, _raise_out_of_time)
    os.chdir(Path(output).parent)
    with Path(output).open("a", encoding="utf-8") as file:
        try:
            package = load_package(Path(path))
            importlib.import_module(package.namespaces[0])
            callables = find_callables(package.namespaces)
        except Exception as error:
            file.write(json.dumps(["failed", f"{type(error).__name__}: {error}"]) + "\n")
            return
        worker = Worker(package, file, crashed, same_only=bool(only))
        for index, candidate in enumerate(callables):
            if index < int(first) or (share and index % 2 != int(share)):
                continue
            kind = package.kind_of(candidate) if candidate.is_first else None
            if only and (kind is None or kind.name != only):
                continue
            file.write(
                json.dumps(["callable", index, candidate.name, candidate.signature, kind.name if kind else ""]) + "\n"
            )
            if kind is not None:
                worker.drive(candidate, kind)
        file.write('["done"]\n')


if __name__ == "__main__":
    main(sys.argv[1:])
