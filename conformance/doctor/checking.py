"""All steps, in their order: those of the machine, then those of each framework until one fails."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from conformance.doctor import wheels
from conformance.doctor.apart import CommandResult, run_apart
from conformance.doctor.driver import MACHINE, Driver, Step, examine
from frameworks.installer import locks
from frameworks.installer.distributions import DISTRIBUTIONS, Distribution
from frameworks.registry import path_of
from results.record.files import one_line

ROOT = Path(__file__).parents[2]

ON_A_GPU = ("device", "memory", "timing", "two processes")
"""Steps of a framework's process that need a GPU."""

_REMEDIES = {
    "import": "reinstall it: `pip install --force-reinstall`, or `conformance install` in a new environment",
    "compute": "the wheel does not fit this processor: install another version",
    "adapter": "install what it names, or run `conformance install`",
    "device": "check CUDA_VISIBLE_DEVICES and the build; the driver's other steps are above",
    "memory": "end other processes on the GPU (nvidia-smi lists them), or choose another one by CUDA_VISIBLE_DEVICES",
    "timing": "end other processes on the GPU; update the driver if it is older than the build",
    "two processes": "set the compute mode to default (nvidia-smi -c 0), or run with --numprocesses=1",
}


def checked(names: Sequence[str], device: str, limit_s: float) -> Iterator[Step]:
    """Every step, as it ends.

    Args:
        names: adapters; without any, those whose framework is installed.
        device: "auto", "cpu" or "cuda".
        limit_s: longest time of a framework's process, in seconds.

    Raises:
        UnknownFramework: there is no adapter of a name.
    """
    for name in names:
        path_of(name)
    yield from _python()
    if device == "cpu":
        driver = Driver((Step(MACHINE, "driver", "skipped", "of --device cpu"),), "", present=False)
    else:
        driver = examine(device)
    yield from driver.steps
    chosen = [*names] or [name for name, each in DISTRIBUTIONS.items() if wheels.installed_build(each)]
    if not chosen:
        yield Step(MACHINE, "frameworks", "failed", "none is installed", "`conformance install torch` installs one")
    for name in chosen:
        yield from _framework(name, device, driver, limit_s)


def _python() -> Iterator[Step]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wanted, running = table["project"]["requires-python"], platform.python_version()
    if not SpecifierSet(wanted).contains(running, prereleases=True):
        yield Step(MACHINE, "python", "failed", f"got {running}, want {wanted}", "use another interpreter")
    else:
        yield Step(MACHINE, "python", "ok", running)
    groups = table["dependency-groups"]
    lacking = [one for name in ("suite", "run") for one in groups[name] if not locks.satisfied(one)]
    missing = [Requirement(one).name for one in lacking]
    if missing:
        remedy = f"pip install {shlex.join(lacking)}"
        yield Step(MACHINE, "requirements", "failed", f"missing or too old: {', '.join(missing)}", remedy)
    else:
        yield Step(MACHINE, "requirements", "ok", f"{sum(map(len, (groups['suite'], groups['run'])))} of the suite")


def _framework(name: str, device: str, driver: Driver, limit_s: float) -> Iterator[Step]:
    chosen = DISTRIBUTIONS.get(name)
    if chosen is not None:
        installed = _installed(name, chosen)
        yield installed
        if installed.state == "failed":
            left = ["import", "compute", "build", *ON_A_GPU, "adapter"]
            yield from (Step(name, step, "skipped", "step installed failed") for step in left)
            return
    problem = "of --device cpu" if device == "cpu" else driver.problem
    if chosen is not None:
        build = _build(name, chosen, driver.cuda, problem)
        yield build
        problem = problem or ("step build failed" if build.state == "failed" else "")
    used = "cpu" if problem else "cuda"
    yield from _process(name, used, used if device == "cuda" else device, problem, limit_s)


def _installed(name: str, chosen: Distribution) -> Step:
    build = wheels.installed_build(chosen)
    if build is None:
        return Step(name, "installed", "failed", "no package of it", f"`conformance install {name}` installs it")
    text = f"{build.package} {build.version}"
    if Version(build.version).public != chosen.pinned:
        return Step(name, "installed", "ok", f"{text}; pinned is {chosen.pinned}, so its known failures may differ")
    others = locks.deviations(locks.read(name))
    packages = f"; not as locked: {', '.join(others)}" if others else ", all packages as locked"
    return Step(name, "installed", "ok", f"{text}, as pinned{packages}")


def _build(name: str, chosen: Distribution, cuda: str, problem: str) -> Step:
    if problem:
        return Step(name, "build", "skipped", problem)
    build = wheels.installed_build(chosen)
    assert build is not None
    wrong, remedy = wheels.mismatch(chosen, build, cuda)
    if wrong:
        return Step(name, "build", "failed", wrong, f"{remedy}; or ask for --device cpu")
    return Step(name, "build", "ok", f"for CUDA {build.cuda}; the driver runs {cuda}")


def _process(name: str, device: str, asked: str, problem: str, limit_s: float) -> Iterator[Step]:
    """The steps of the framework's own process; those that need a GPU are skipped because of a problem.

    Args:
        device: where products are computed, "cpu" or "cuda".
        asked: what the adapter gets.
    """
    from conformance.doctor.program import file_of  # takes NumPy

    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "conformance.doctor.program", name, device, asked]
    ended = run_apart(command, limit_s, ROOT, {**os.environ, "PYTHONPATH": path})
    lines = ended.documents
    texts = {line["step"]: line["text"] for line in lines if "text" in line}
    last = lines[-1]["step"] if lines else "import"
    failed = "" if "text" in (lines[-1] if lines else {}) and not ended.problem else last
    for step in ("import", "compute", *ON_A_GPU, "adapter"):
        if step in texts and step != failed:
            yield Step(name, step, "ok", texts[step])
        elif step == failed:
            reported = lines[-1].get("problem", "") if lines else ""
            yield Step(name, step, "failed", _why(reported, ended), _REMEDIES[step])
        elif step in ON_A_GPU and problem:
            yield Step(name, step, "skipped", problem)
        elif step in ("compute", *ON_A_GPU) and file_of(name) is None:
            yield Step(name, step, "skipped", "the adapter has no doctor.py")
        else:
            yield Step(name, step, "skipped", f"step {failed} failed")


def _why(problem: str, ended: CommandResult) -> str:
    if problem:
        return one_line(problem, 300)
    words = [line.strip() for line in ended.errors.splitlines() if line.strip()]
    detail = f": {words[-1]}" if words and ended.exited else ""
    return one_line(f"the process {ended.problem}{detail}", 300)
