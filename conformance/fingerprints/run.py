"""Makes the fingerprints of the packages of a framework that are installed here, and writes a file for each."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from conformance.fingerprints.cases import ROOT, Package, load_package, package_files
from conformance.fingerprints.values import explain_difference
from conformance.runner.machine import instruction_sets
from conformance.runner.subprocesses import VARIABLES

SILENCE_S = 60.0
"""Seconds without an outcome after which the process of a package is ended."""
CRASHES = 40
"""Greatest number of programs that may end the process of a package."""


def make_fingerprints(framework: str, folder: Path, report: Callable[[str], None]) -> list[Path]:
    """Write `PACKAGE-VERSION.json` for each installed package of a framework into a folder, and return the paths."""
    paths = []
    for file in package_files(framework):
        package = load_package(file)
        try:
            version = metadata.version(package.distribution)
        except metadata.PackageNotFoundError:
            continue
        start = time.monotonic()
        fingerprint = run_package(file, package, version)
        path = folder / f"{package.distribution}-{version.partition(chr(43))[0]}.json"
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(fingerprint, separators=(",", ":"), sort_keys=True), "utf-8")
        entries = fingerprint["callables"].values()
        cases = sum(len(entry["cases"]) for entry in entries)
        report(f"{path}: {len(entries)} callables, {cases} cases, {time.monotonic() - start:.0f} s")
        paths.append(path)
    return paths


def run_package(file: Path, package: Package, version: str) -> dict[str, Any]:
    """Run the programs of a package in two processes, and return the fingerprint of the cases that came out alike.

    Raises:
        RuntimeError: the package cannot be imported, or a file names something that it lacks.
    """
    with tempfile.TemporaryDirectory(prefix="conformance-") as name, ThreadPoolExecutor(2) as pool:
        folders = [Path(name) / str(seed) for seed in range(2)]
        first, second = pool.map(lambda folder: _run_to_end(file, folder, folder.name), folders)
    fingerprint, other = _collect(first, package, version), _collect(second, package, version)
    for callable_name, entry in fingerprint["callables"].items():
        again = other["callables"].get(callable_name, {"cases": {}})["cases"]
        pairs = {key: (outcome, again.get(key)) for key, outcome in entry["cases"].items()}
        entry["cases"] = {
            key: old for key, (old, new) in pairs.items() if new and _is_alike(fingerprint, old, other, new)
        }
    return fingerprint


def _is_alike(fingerprint: Mapping[str, Any], old: str, other: Mapping[str, Any], new: str) -> bool:
    (old_structure, old_numbers), (new_structure, new_numbers) = (
        read_outcome(fingerprint, old),
        read_outcome(other, new),
    )
    is_rounding = explain_difference(old_structure, old_numbers, new_numbers) in ("", "rounding")
    return old_structure == new_structure and is_rounding


def read_outcome(fingerprint: Mapping[str, Any], outcome: str) -> tuple[str, str]:
    """Return the structure and the numbers of an outcome; "!" and a name is the structure of an exception."""
    index, _, numbers = outcome.partition(" ")
    return fingerprint["structures"][int(index)], numbers


def _run_to_end(file: Path, folder: Path, seed: str) -> list[list[Any]]:
    """Run workers in a folder, another one after each crash, and return their lines."""
    folder.mkdir()
    output, first, crashed = folder / "outcomes.jsonl", 0, list[str]()
    while len(crashed) <= CRASHES:
        ending = _run_worker(file, output, first, crashed, seed)
        lines = _read_lines(output)
        if not lines or lines[-1][0] == "failed":
            raise RuntimeError(
                f"{file.stem}: {lines[-1][1] if lines else 'the process ended before its first program'}"
            )
        if lines[-1][0] == "done":
            break
        first = next(line[1] for line in reversed(lines) if line[0] == "callable")
        key = next((line[1] for line in reversed(lines) if line[0] == "start"), "")
        crashed.append(key)
        with output.open("a", encoding="utf-8") as appended:
            appended.write(json.dumps(["end", key, f"!{ending}", ""]) + "\n")
    return _read_lines(output)


def _run_worker(file: Path, output: Path, first: int, crashed: list[str], seed: str) -> str:
    """Run a worker until it ends or is silent; return "crash" or "timeout", which matter if it was not done."""
    argv = [sys.executable, "-m", "conformance.fingerprints.worker", str(file), str(output), str(first), *crashed]
    environment = os.environ | dict(VARIABLES) | {"PYTHONHASHSEED": seed}
    process = subprocess.Popen(argv, cwd=ROOT, env=environment)
    try:
        size, since = -1, time.monotonic()
        while True:
            try:
                process.wait(1.0)
                return "crash"
            except subprocess.TimeoutExpired:
                now = output.stat().st_size if output.exists() else 0
                if now != size:
                    size, since = now, time.monotonic()
                elif time.monotonic() - since > SILENCE_S:
                    return "timeout"
    finally:
        process.kill()
        process.wait()


def _read_lines(output: Path) -> list[list[Any]]:
    lines = output.read_text("utf-8").splitlines() if output.exists() else []
    return [json.loads(line) for line in lines if line.endswith("]")]


def _collect(lines: list[list[Any]], package: Package, version: str) -> dict[str, Any]:
    structures: dict[str, int] = {}
    callables: dict[str, Any] = {}
    cases: dict[str, str] = {}
    for line in lines:
        if line[0] == "callable":
            _, _, name, signature, kind = line
            entry = callables.setdefault(name, {"signature": signature, "kind": kind, "cases": {}})
            cases = entry["cases"]
        elif line[0] == "end":
            _, key, structure, numbers = line
            index = structures.setdefault(structure, len(structures))
            cases[key] = f"{index} {numbers}".strip()
    return {
        "fingerprint": 1,
        "package": package.distribution,
        "version": version,
        "packages": _versions(),
        "instruction_sets": list(instruction_sets()),
        "kinds": {kind.name: _kind_table(kind) for kind in package.kinds},
        "structures": list(structures),
        "callables": callables,
    }


def _kind_table(kind: Any) -> Mapping[str, Any]:
    variants = {variant.name: {"replace": variant.replace, "same": variant.is_same} for variant in kind.variants}
    return {"program": kind.program.strip(), "variants": variants}


def _versions() -> dict[str, str]:
    return {distribution.metadata["Name"]: distribution.version for distribution in metadata.distributions()}
