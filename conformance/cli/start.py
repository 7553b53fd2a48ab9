"""Commands for the start: `conformance quickstart`, `new`, `install` and `doctor`.

`doctor` imports and uses the framework in a separate process, `python -m conformance.cli.start NAME DEVICE`, which
writes a line of JSON after each step.
"""

import json
import keyword
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource
from packaging.specifiers import SpecifierSet

from conformance.cli.options import PATH, names
from conformance.cli.run import import_from_here
from conformance.runner.subprocesses import guard_group, killed_by
from conformance.test_ids import SUITES
from frameworks.installer import install as installing
from frameworks.installer import locks
from frameworks.installer.distributions import DISTRIBUTIONS, Distribution
from frameworks.registry import DEVICE_HELP, find_adapters, path_of
from results.record.files import RecordError, one_line
from results.record.model import Outcome, Record, TestVerdict
from results.record.reading import load

ROOT = Path(__file__).parents[2]
TWIN = "frameworks.broken:AppliesOverflow"
BROKEN_CLAUSE = "scaling.skip-is-atomic"


def start_suite(framework: str, record: Path) -> subprocess.Popen[bytes]:
    """Start the scaling family on one framework in a new process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:benchmark", str(SUITES / "scaling")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, f"--framework={framework}", "--device=cpu", f"--record={record}"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def print_outcomes(name: str, record: Record) -> None:
    """Print one line with the number of verdicts of a record by outcome."""
    counts = {outcome: sum(v.outcome is outcome for v in record.verdicts) for outcome in Outcome}
    parts = [f"{count} {outcome}" for outcome, count in counts.items() if count]
    print(f"{name}: {' · '.join(parts)} (of {len(record.verdicts)} verdicts, {record.duration_s:.0f} s)")


def main() -> int:
    """Run the reference and its broken twin, explain the results, and return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        records = {name: Path(folder) / f"{name}.json" for name in ("reference", "twin")}
        running = [start_suite("reference", records["reference"]), start_suite(TWIN, records["twin"])]
        outputs = [process.communicate()[0].decode("utf-8", "replace") for process in running]
        try:
            reference, twin = (load(path) for path in records.values())
        except RecordError as error:
            print(*outputs, error, sep="\n", file=sys.stderr)
            return 1
    print_outcomes("reference", reference)
    print_outcomes("broken twin", twin)
    caught = [v for v in twin.verdicts if v.clause == BROKEN_CLAUSE and v.outcome is Outcome.FAIL]
    explain(reference, caught)
    is_clean = bool(reference.verdicts) and all(v.outcome is Outcome.PASS for v in reference.verdicts)
    return 0 if is_clean and caught else 1


def explain(reference: Record, caught: list[TestVerdict]) -> None:
    """Print unexpected outcomes and, if tests caught the fault, the requirement that it broke and the first message."""
    for verdict in [v for v in reference.verdicts if v.outcome.bad][:5]:
        print(f"  UNEXPECTED {verdict.clause}: {verdict.message}")
    if not caught:
        print(f"  UNEXPECTED: no test of {BROKEN_CLAUSE} failed on the broken twin")
        return
    clause = reference.clauses[BROKEN_CLAUSE]
    print(
        "\nThe reference passes the scaling clauses; its copy, changed in one line, applies overflowed updates.\n"
        f"{len(caught)} tests of {BROKEN_CLAUSE} ({clause.level}) caught it:\n"
        f"  requirement  {' '.join(clause.requirement.split())}\n"
        f"  seen         {caught[0].message}\n"
        f"Repeat one: {caught[0].repro}"
    )


MACHINE = "machine"
"""Subject of the steps of `doctor` that are about no framework."""

_OTHER_BUILD = "the wheel does not fit this processor or GPU: install another build"
STEPS = {
    "import": "install what it names, or `conformance install` in a new environment; a GPU also needs its driver",
    "multiply": _OTHER_BUILD,
    "backward": _OTHER_BUILD,
}
"""Steps of the process that uses the framework, each with the remedy if it fails."""


@click.command()
def quickstart() -> int:
    """Run the scaling clauses on the float64 NumPy reference and on a copy of it with one bug, which a clause catches.
    No framework is needed.

    Exit status: 0, the reference passes and the bug is caught; 1, otherwise.
    """
    return main()


@click.group()
def new() -> None:
    """Create a training loop to judge, or an adapter of a framework.

    \b
    conformance new loop FOLDER
    conformance new adapter FOLDER
    """


@new.command()
@click.argument("folder", type=PATH)
def loop(folder: Path) -> None:
    """Create my_training.py in FOLDER: a correct PyTorch loop of three methods, to replace by your own."""
    try:
        path = write_loop(folder)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    click.echo(one_line(f"wrote {path}"))
    click.echo(one_line(f"judge it: cd {folder} && python -m conformance run {path.stem}:Loop --tests quick"))


@new.command()
@click.argument("folder", type=PATH)
@click.option("--name", metavar="NAME", help="Name of the adapter; by default that of the folder.")
def adapter(folder: Path, name: str | None) -> None:
    """Create an adapter in the new FOLDER: a package without capabilities, for which nearly every test ends as `not
    offered`. docs/adapters.md explains how to add capabilities.
    """
    name = os.path.basename(os.path.realpath(folder)) if name is None else name
    try:
        files = write_adapter(name, folder)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    for path in files:
        click.echo(one_line(f"wrote {path}"))
    click.echo(one_line(f"run the suite: PYTHONPATH={folder} python -m conformance run {import_path_of(name)}"))
    click.echo(one_line(f"or install the adapter (pip install -e {folder}), then: python -m conformance run {name}"))


@click.command()
@click.option("--all", "is_all", is_flag=True, help="Install all built-in frameworks.")
@click.option(
    "--mode",
    "modes",
    envvar="CONFORMANCE_MODES",
    default="",
    metavar="A,B",
    help="Also install what these modes need, such as accelerate.",
)
@click.argument("names", nargs=-1, type=click.Choice(list(installing.DISTRIBUTIONS)), metavar="[NAME]...")
def install(is_all: bool, modes: str, names: tuple[str, ...]) -> int:
    """Install frameworks by uv or pip (NAME is torch, tf, paddle or jax): the locked versions, or those that
    environment variables select.

    \b
    conformance install torch
    conformance install --all
    conformance install torch --mode lightning
    TORCH_VERSION=2.15.0 conformance install torch

    Variables, with NAME one of TORCH, TF, PADDLE and JAX: NAME_VERSION, version of the framework; PACKAGE_VERSION,
    version of any package that comes with it; NAME_INDEX, an additional package index; NAME_REQUIREMENT, a wheel or
    requirement to install instead. CONFORMANCE_INSTALLER is uv, the default where it is installed, or pip. If an
    NVIDIA driver is present, the GPU build is chosen.

    Exit status: 0, installed; 2, a package is not available, with the reason in one line.
    """
    if is_all == bool(names):
        raise click.UsageError("name the frameworks to install, or use --all")
    if len(set(names)) < len(names):
        raise click.UsageError(f"a framework is named twice: {', '.join(names)}")
    chosen = list(names or installing.DISTRIBUTIONS)
    wanted = [mode for mode in modes.split(",") if mode]
    known = {mode for name in chosen for mode in installing.DISTRIBUTIONS[name].modes}
    is_option = click.get_current_context().get_parameter_source("modes") is ParameterSource.COMMANDLINE
    if is_option and (unknown := sorted(set(wanted) - known)):
        choice = f"one of {', '.join(sorted(known))}" if known else f"none, {', '.join(chosen)} needs no more packages"
        raise click.UsageError(f"--mode: got {', '.join(unknown)}, want {choice}")
    return installing.main(chosen, wanted)


@dataclass(frozen=True)
class Step:
    """The outcome of a step about a framework or the `MACHINE`: what was observed, and what the user can do, or ""."""

    subject: str
    name: str
    state: Literal["ok", "failed"]
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{self.subject:<10} {self.name:<12} {self.state:<6} {self.text}{remedy}"


@click.command()
@click.argument("frameworks", nargs=-1, metavar="[FRAMEWORK]...", shell_complete=names)
@click.option("--device", default="auto", show_default=True, metavar="NAME", help=DEVICE_HELP)
@click.option("--format", "style", type=click.Choice(["table", "json"]), default="table", help="Output format.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=180,
    show_default=True,
    metavar="SECONDS",
    help="Longest time of a framework's process.",
)
def doctor(frameworks: tuple[str, ...], device: str, style: str, limit: int) -> int:
    """Check whether a run of each FRAMEWORK (by default of each installed one) can work here: Python and requirements,
    NVIDIA's driver, versions against the lock, import, a forward and a backward pass against the reference.

    \b
    conformance doctor
    conformance doctor torch --device cuda
    conformance doctor --format json

    Exit status: 0, a run can work here; 1, a step failed, and the last line names it; 2, bad usage.
    """
    if len(set(frameworks)) < len(frameworks):
        raise click.UsageError(f"a framework is named twice: {', '.join(frameworks)}")
    if any(":" in name for name in frameworks):
        import_from_here()
    for name in frameworks:
        path_of(name)
    steps = []
    for step in check(frameworks, device, limit):
        steps.append(step)
        if style == "table":
            click.echo(str(step))
    failed = [step for step in steps if step.state == "failed"]
    conclusion = "a run can work here"
    if failed:
        step, remedy = failed[0], f"; {failed[0].remedy}" if failed[0].remedy else ""
        conclusion = f"a run cannot work here: {step.subject} {step.name}: {step.text}{remedy}"
    document = {"status": int(bool(failed)), "conclusion": conclusion, "steps": [asdict(step) for step in steps]}
    click.echo(json.dumps(document, indent=1) if style == "json" else conclusion)
    return int(bool(failed))


def check(chosen: tuple[str, ...], device: str, limit_s: float) -> Iterator[Step]:
    """Check the machine and the frameworks; yield every step as it ends."""
    yield from _python()
    yield _driver(device)
    installed = [name for name, distribution in DISTRIBUTIONS.items() if _installed_package(distribution)]
    if not chosen and not installed:
        yield Step(MACHINE, "frameworks", "failed", "none is installed", "`conformance install torch` installs one")
    for name in chosen or installed:
        if name in DISTRIBUTIONS:
            yield (step := _versions(name))
            if step.state == "failed":
                continue
        yield from _use(name, device, limit_s)


def _python() -> Iterator[Step]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wanted, running = project["project"]["requires-python"], platform.python_version()
    if SpecifierSet(wanted).contains(running, prereleases=True):
        yield Step(MACHINE, "python", "ok", running)
    else:
        yield Step(MACHINE, "python", "failed", f"got {running}, want {wanted}", "use another interpreter")
    lacking = [name for name in project["project"]["dependencies"] if not locks.is_satisfied(name)]
    if lacking:
        text = f"missing or too old: {', '.join(sorted(locks.names(lacking)))}"
        yield Step(MACHINE, "requirements", "failed", text, "pip install --group suite --group run")
    else:
        yield Step(MACHINE, "requirements", "ok", "those of the suite are installed")


def _driver(device: str) -> Step:
    program = shutil.which("nvidia-smi")
    if program is None:
        text = "no NVIDIA driver: nvidia-smi is not on PATH"
        if device != "cuda":
            return Step(MACHINE, "driver", "ok", text)
        remedy = "install the driver, start the container with the GPU, or ask for --device cpu"
        return Step(MACHINE, "driver", "failed", text, remedy)
    status, output, errors = _run([program], 60)
    if status == 0 or device == "cpu":
        versions = re.findall(r"(?:Driver|CUDA (?:UMD )?) ?Version:\s*[\d.]+", output)
        text = ", ".join(" ".join(version.split()) for version in versions)
        return Step(MACHINE, "driver", "ok", text or "no version")
    reason = next((line.strip() for line in (output + errors).splitlines() if line.strip()), "no reason given")
    return Step(MACHINE, "driver", "failed", f"nvidia-smi: {one_line(reason, 200)}", "reinstall the driver, or reboot")


def _installed_package(distribution: Distribution) -> str:
    """Return the installed package with its version, "" if it is not installed."""
    versions = {package: locks.installed_version(package) for package in distribution.packages}
    return next((f"{package} {version}" for package, version in versions.items() if version), "")


def _versions(name: str) -> Step:
    distribution = DISTRIBUTIONS[name]
    package = _installed_package(distribution)
    if not package:
        return Step(name, "versions", "failed", "not installed", f"`conformance install {name}` installs it")
    if package.partition(" ")[2].partition("+")[0] != distribution.pinned:
        return Step(name, "versions", "ok", f"{package}; the locked version is {distribution.pinned}")
    others = ", ".join(locks.deviations(locks.read(name)))
    return Step(name, "versions", "ok", f"{package}; {f'not as locked: {others}' if others else 'as locked'}")


def _use(name: str, device: str, limit_s: float) -> Iterator[Step]:
    """Yield the steps of the framework's own process, up to the one that fails."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "conformance.cli.start", name, device]
    status, output, errors = _run(command, limit_s, {**os.environ, "PYTHONPATH": path})
    texts: dict[str, str] = {}
    for line in output.splitlines():
        with suppress(ValueError):
            texts |= json.loads(line)
    for step, remedy in STEPS.items():
        if not texts.get(step):
            last_line = next((line for line in reversed(errors.splitlines()) if line.strip()), "no reason given")
            reason = texts.get("problem") or f"its process {_describe_end(status, limit_s)}: {last_line.strip()}"
            yield Step(name, step, "failed", one_line(reason, 300), remedy)
            return
        yield Step(name, step, "ok", texts[step])


def _describe_end(status: int | None, limit_s: float) -> str:
    if status is None:
        return f"did not end within {limit_s:g} s"
    name = killed_by(status)
    return f"crashed with {name}" if name else f"ended with status {status}"


def _run(command: list[str], limit_s: float, environment: dict[str, str] | None = None) -> tuple[int | None, str, str]:
    """Run a command and end its process group; return exit status (None at the time limit), output and errors."""
    process = subprocess.Popen(
        command,
        env=environment,
        process_group=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    is_late = False
    try:
        with guard_group(process.pid):
            try:
                output, errors = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                is_late = True
                os.killpg(process.pid, signal.SIGKILL)
                output, errors = process.communicate()
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return (None if is_late else process.returncode), output, errors


def use(name: str, device: str) -> int:
    """Import a framework and train with it, in this process; return the exit status.

    Standard output gets a line of JSON for each step: its name and its result, or "problem" and the error.
    """
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the framework prints is no step
    for step, work in _work(name, device):
        try:
            texts = {step: work()}
        except Exception as error:  # a framework may raise anything, and what it raises is the answer
            texts = {"problem": f"{type(error).__name__}: {error}"}
        print(json.dumps(texts), file=out, flush=True)
        if "problem" in texts:
            return 1
    return 0


def _work(name: str, device: str) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the steps: name, and a function that returns the result in words or raises an error."""
    from fixtures.data import exact_batch
    from fixtures.models import exact_linear
    from fixtures.recipe import Recipe
    from frameworks.contract import Trainer, Unsupported
    from frameworks.registry import load

    framework, reference = None, load("reference", "cpu")
    model, batch, recipe = exact_linear(), exact_batch(), Recipe()

    def start() -> str:
        nonlocal framework
        framework = load(name, device)
        return f"version {framework.version()}, mode {framework.mode} on {framework.device}"

    def agree(what: str, arrays: Callable[[Trainer], Mapping[str, Any]]) -> str:
        assert framework is not None
        try:
            got, want = (arrays(one.trainer(model, recipe, model.weights(0))) for one in (framework, reference))
        except Unsupported:
            return "the adapter does not offer it"
        for key, value in want.items():
            error = float(abs(got[key].astype("float64") - value).max())
            if not error <= 1e-5 * float(abs(value).max()):
                raise ValueError(f"{what} of {key!r} differ from the reference's by {error:g}")
        return f"{what} are the reference's"

    yield "import", start
    yield "multiply", lambda: agree("outputs", lambda trainer: trainer.predict(batch.inputs))
    yield "backward", lambda: agree("gradients", lambda trainer: trainer.gradients((batch,)))


if __name__ == "__main__":
    sys.exit(use(*sys.argv[1:]))


_TEMPLATE = ROOT / "frameworks" / "template"
_OUTSIDE = ("pyproject.toml",)
_INSIDE = ("__init__.py", "adapter.py", "findings.toml")
_LOOP = ROOT / "frameworks" / "torch" / "template" / "my_training.py"
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def write_adapter(name: str, folder: Path) -> list[Path]:
    """Writes an adapter without capabilities, and returns its files.

    Nearly all tests of this adapter are `not offered`. The two tests that need no capability pass, and the test of the
    adapter's overhead abstains.

    Args:
        name: the adapter's name for `--framework` and records.
        folder: folder of the package, which is created unless it exists; it must be empty.

    Raises:
        ValueError: the name is invalid or taken, the folder is a file or not empty, or its parent is missing; the
            message is one line.
        OSError: a file cannot be written.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ValueError(f"name of an adapter: got {name!r}, want one such as my_framework")
    if name in find_adapters():
        raise ValueError(f"adapter {name!r} exists already; choose another name")
    _check_new(folder)
    package = f"{name}_conformance"
    sources = {folder / file: _TEMPLATE / file for file in _OUTSIDE}
    sources |= {folder / package / file: _TEMPLATE / file for file in _INSIDE}
    for path, source in sources.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_rename_template(source.read_text("utf-8"), name), encoding="utf-8")
    return list(sources)


def write_loop(folder: Path) -> Path:
    """Writes a training loop, and returns its file.

    Args:
        folder: folder of the loop, which is created unless it exists; it must be empty.

    Raises:
        ValueError: the folder is a file, is not empty, or its parent is missing; the message is one line.
        OSError: the file cannot be written.
    """
    path = folder / _LOOP.name
    if path.exists() or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"{path if folder.is_dir() else folder} exists already; choose another folder")
    _check_new(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(_LOOP.read_text("utf-8"), encoding="utf-8")
    return path


def _check_new(folder: Path) -> None:
    """Refuses a folder that is not empty, or whose parent does not exist."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty; choose a new folder")
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"{folder.absolute().parent} is not a folder; create it, or check the name")


def class_of(name: str) -> str:
    """The class name of an adapter, such as MyFrameworkAdapter for my_framework."""
    return "".join(part.capitalize() for part in name.split("_")) + "Adapter"


def import_path_of(name: str) -> str:
    """The import path, package.module:Class, of an adapter that was written under this name."""
    return f"{name}_conformance.adapter:{class_of(name)}"


def _rename_template(text: str, name: str) -> str:
    text = text.replace("TemplateAdapter", class_of(name)).replace("template-", f"{name.replace('_', '-')}-")
    return text.replace("template", name)
