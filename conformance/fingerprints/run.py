"""Makes the fingerprints of the packages of a framework that are installed here, and writes a file for each."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from conformance.fingerprints.cases import ROOT, Package, find_version, load_package
from results.compare.fingerprints import (
    SUFFIX,
    CallableTable,
    KindTable,
    PackageFingerprint,
    VariantTable,
    explain_outcomes,
)
from results.record.files import compress_content, replace

SILENCE_S = 600.0  # without an outcome, after which a process is ended
CRASHES = 40  # of a package's process, at most


def make_fingerprints(
    files: Sequence[Path],
    folder: Path,
    packages: dict[str, str],
    instruction_sets: list[str],
    report: Callable[[str], None],
) -> list[Path]:
    """Write PACKAGE-VERSION.fingerprint.gz for each package that is installed, and return the paths.

    Args:
        files: files of packages.
        packages: versions of the installed packages.
        instruction_sets: those that kernels may use here.

    Raises:
        RuntimeError: a package cannot be imported.
    """
    paths = []
    for file in files:
        package = load_package(file)
        if not (version := find_version(package.distribution)):
            continue
        start = time.monotonic()
        fingerprint = run_package(file, version.partition("+")[0])
        fingerprint.packages, fingerprint.instruction_sets = packages, instruction_sets
        path = folder / f"{package.distribution}-{fingerprint.version}{SUFFIX}"
        folder.mkdir(parents=True, exist_ok=True)
        content = compress_content(path, msgspec.json.encode(fingerprint, order="deterministic"))
        replace(path, content)
        entries = fingerprint.callables.values()
        cases, seconds = sum(len(entry.cases) for entry in entries), time.monotonic() - start
        report(f"{path}: {len(entries)} callables, {cases} calls, {len(content) >> 10} KiB, {seconds:.0f} s")
        paths.append(path)
    return paths


def run_package(file: Path, version: str, kind: str = "") -> PackageFingerprint:
    """Run the programs of a package in two processes, and return the fingerprint of the cases that came out alike.

    Args:
        kind: run only the programs of this kind whose results must agree.

    Raises:
        RuntimeError: the package cannot be imported, or a file names something that it lacks.
    """
    package = load_package(file)
    with tempfile.TemporaryDirectory(prefix="conformance-") as name, ThreadPoolExecutor(2) as pool:
        folders = [Path(name) / str(seed) for seed in range(2)]
        runs = list(pool.map(lambda folder: _run_to_end(file, folder, package.is_deterministic, kind), folders))
    if package.is_deterministic:
        return _collect([*runs[0], *runs[1]], package, version)
    fingerprint, other = (_collect(lines, package, version) for lines in runs)
    for callable_name, entry in fingerprint.callables.items():
        again = other.callables[callable_name].cases if callable_name in other.callables else {}
        pairs = {
            case: (fingerprint.outcome(old), other.outcome(again[case]))
            for case, old in entry.cases.items()
            if case in again
        }
        entry.cases = {
            case: entry.cases[case] for case, pair in pairs.items() if explain_outcomes(*pair) in ("", "rounding")
        }
    return fingerprint


def _run_to_end(file: Path, folder: Path, is_share: bool, kind: str) -> list[list[Any]]:
    """Run workers in a folder, another one after each crash, and return their lines."""
    folder.mkdir()
    output, first, crashed = folder / "outcomes.jsonl", 0, list[str]()
    while len(crashed) <= CRASHES:
        is_crash = _run_worker(
            [str(file.resolve()), str(output), folder.name if is_share else "", str(first), kind, *crashed],
            output,
            folder.name,
        )
        lines = _read_lines(output)
        if not lines or lines[-1][0] == "failed":
            raise RuntimeError(
                f"{file.stem}: {lines[-1][1] if lines else 'the process ended before its first program'}"
            )
        if lines[-1][0] == "done":
            break
        first, name = next((line[1], line[2]) for line in reversed(lines) if line[0] == "callable")
        key = next((line[1] for line in reversed(lines) if line[0] == "start"), "")
        crashed.append(f"{name} {key}")
        if is_crash:
            with output.open("a", encoding="utf-8") as appended:
                appended.write(json.dumps(["end", key, "!crash", ""]) + "\n")
    return _read_lines(output)


def _run_worker(arguments: list[str], output: Path, seed: str) -> bool:
    """Run a worker until it ends or is silent; return whether it ended by itself."""
    argv = [sys.executable, "-m", "conformance.fingerprints.worker", *arguments]
    environment = os.environ | {"PYTHONHASHSEED": seed}
    process = subprocess.Popen(argv, cwd=ROOT, env=environment)
    try:
        size, since = -1, time.monotonic()
        while True:
            try:
                process.wait(1.0)
                return True
            except subprocess.TimeoutExpired:
                now = output.stat().st_size if output.exists() else 0
                if now != size:
                    size, since = now, time.monotonic()
                elif time.monotonic() - since > SILENCE_S:
                    return False
    finally:
        process.kill()
        process.wait()


def _read_lines(output: Path) -> list[list[Any]]:
    lines = output.read_text("utf-8").splitlines() if output.exists() else []
    return [json.loads(line) for line in lines if line.endswith("]")]


def _collect(lines: list[list[Any]], package: Package, version: str) -> PackageFingerprint:
    structures: dict[str, int] = {}
    callables: dict[str, CallableTable] = {}
    cases: dict[str, str] = {}
    for line in lines:
        if line[0] == "callable":
            _, _, name, signature, kind = line
            cases = callables.setdefault(name, CallableTable(signature, kind, {})).cases
        elif line[0] == "end":
            _, case, structure, numbers = line
            index = structures.setdefault(structure, len(structures))
            cases[case] = f"{index} {numbers}".strip()
    kinds = {
        kind.name: KindTable(
            kind.program.strip(),
            {variant.name: VariantTable(list(variant.replace), variant.is_same) for variant in kind.variants},
        )
        for kind in package.kinds
    }
    return PackageFingerprint(1, package.distribution, version, {}, [], kinds, list(structures), callables)
