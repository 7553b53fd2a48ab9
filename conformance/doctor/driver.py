"""A step of the doctor, and those of NVIDIA's driver: nvidia-smi, and its library, which a new process loads."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from typing import Any, Literal

from conformance.doctor.apart import CommandResult, run_apart

MACHINE = "machine"
"""Subject of the steps that are the same for every framework."""

LIBRARY = "libcuda.so.1"
NO_DRIVER = "no NVIDIA driver"
LIMIT_S = 60.0
"""Longest time of nvidia-smi and of the library's calls, in seconds."""

_REMEDIES = {
    100: "check CUDA_VISIBLE_DEVICES, and that the container was started with the GPU (docker run --gpus all)",
    802: "start nvidia-fabricmanager",
    803: "the library and the kernel module are of different versions: reboot, or update the container's driver files",
    804: "remove the compatibility library of CUDA from the loader's path, or update the driver",
}
_REINSTALL = "reinstall the driver, or check LD_LIBRARY_PATH"

_CALLS = """
import ctypes, json, sys
try:
    library = ctypes.CDLL(sys.argv[1])
except OSError as error:
    print(json.dumps({"absent": "No such file" in str(error), "problem": f"cannot be loaded ({error})"}))
    raise SystemExit
number = ctypes.c_int()
for call, argument in (("cuInit", 0), ("cuDriverGetVersion", number), ("cuDeviceGetCount", number)):
    status = getattr(library, call)(argument if call == "cuInit" else ctypes.byref(number))
    if status:
        print(json.dumps({"problem": f"{call} returned {status}", "status": status}))
        raise SystemExit
    print(json.dumps({call: number.value}), flush=True)
"""


@dataclass(frozen=True)
class Step:
    """The outcome of a step.

    Attributes:
        subject: a framework, or `MACHINE`.
        text: what was observed; of a skipped step the reason.
        remedy: what to do, "" if nothing.
    """

    subject: str
    name: str
    state: Literal["ok", "failed", "skipped"]
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        said = f"skipped because {self.text}" if self.state == "skipped" else f"{self.state:<7} {self.text}".rstrip()
        return f"{self.subject:<10} {self.name:<14} {said}{f'; {self.remedy}' if self.remedy else ''}"


@dataclass(frozen=True)
class Driver:
    """What is known of the driver.

    Attributes:
        steps: of the machine.
        cuda: newest CUDA version that it runs, such as "13.0"; "" if there is no working driver.
        present: whether anything of a driver is installed.
    """

    steps: tuple[Step, ...]
    cuda: str
    present: bool

    @property
    def problem(self) -> str:
        """Why no framework can use a GPU, "" if the driver works."""
        failed = [step.name for step in self.steps if step.state == "failed"]
        return "" if self.cuda else f"step {failed[-1]} failed" if failed and self.present else NO_DRIVER


def examine(device: str) -> Driver:
    """The driver's steps for the device that the user asked for: "auto", "cpu" or "cuda"."""
    program = shutil.which("nvidia-smi")
    library = run_apart([sys.executable, "-I", "-c", _CALLS, LIBRARY], LIMIT_S)
    said = {key: value for each in library.documents for key, value in each.items()}
    if said.get("absent") and program is None:
        if device != "cuda":
            return Driver((Step(MACHINE, "driver", "skipped", NO_DRIVER),), "", present=False)
        text = f"{NO_DRIVER}: neither nvidia-smi nor {LIBRARY} is there"
        remedy = "install the driver, start the container with the GPU, or ask for --device cpu"
        return Driver((Step(MACHINE, "driver", "failed", text, remedy),), "", present=False)
    loaded = _library(library, said)
    cuda = _version(said["cuDriverGetVersion"]) if loaded.state == "ok" else ""
    return Driver((_program(program), loaded), cuda, present=True)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _library(ended: CommandResult, said: dict[str, Any]) -> Step:
    name = "driver"
    if (problem := said.get("problem")) or ended.problem:
        status = said.get("status")
        remedy = _REMEDIES.get(status, _REINSTALL) if isinstance(status, int) else _REINSTALL
        return Step(MACHINE, name, "failed", f"{LIBRARY} {problem or ended.problem}", remedy)
    count = said["cuDeviceGetCount"]
    text = f"{LIBRARY} runs CUDA {_version(said['cuDriverGetVersion'])}, {count} GPU{'s'[: count != 1]}"
    if not count:
        return Step(MACHINE, name, "failed", text, _REMEDIES[100])
    return Step(MACHINE, name, "ok", text)


def _program(program: str | None) -> Step:
    name = "nvidia-smi"
    if program is None:
        remedy = "without it `conformance install` takes the build for the CPU"
        return Step(MACHINE, name, "skipped", "it is not on PATH, while the driver's library is there", remedy)
    ended = run_apart([program], LIMIT_S)
    if ended.problem:
        lines = (ended.output + "\n" + ended.errors).splitlines()
        first_line = next((line.strip() for line in lines if line.strip()), "")
        return Step(MACHINE, name, "failed", f"{ended.problem}{f': {first_line}' if first_line else ''}", _REINSTALL)
    named = re.search(r"CUDA (?:UMD )?Version:\s*(\d+\.\d+)", ended.output)
    driver = re.search(r"Driver Version:\s*([\d.]+)", ended.output)
    parts = [f"driver {driver[1]}" if driver else "", f"CUDA {named[1]}" if named else ""]
    return Step(MACHINE, name, "ok", ", ".join(filter(None, parts)) or "answers, without naming a version")
