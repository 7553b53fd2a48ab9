"""Runs of the default selection as on other processors, by the libraries' own switches.

    python -m tools processors torch tf paddle jax

prints a table: framework, mode, level of kernels, seconds, failing tests. Each framework is judged in the environment
that runs this command, in its default modes. There is no switch for Eigen's kernels in TensorFlow, which the wheel
fixes when it is built, for FBGEMM and XNNPACK in PyTorch, and for any kernel of Paddle, judged as the processor is.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from conformance.runner.jobs import ROOT
from conformance.runner.subprocesses import ask
from frameworks.registry import adapter_file
from results.record.reading import Record, load

XLA = "--xla_cpu_max_isa"
LEVELS: Mapping[str, Mapping[str, str]] = {
    "as it is": {},
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        XLA: "AVX2",
    },
    "none": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "OPENBLAS_CORETYPE": "Nehalem",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        XLA: "AVX",
    },
}
"""Switches by level of kernels; that of XLA is a flag of `XLA_FLAGS`. TensorFlow uses oneDNN by default where the
processor has AVX-512 VNNI or AVX-VNNI, whatever `ONEDNN_MAX_CPU_ISA` says, so both lower levels turn it off. Wheels of
jaxlib need AVX; below it XLA cannot convert float16 (`__truncsfhf2`)."""

INCONSISTENT = {("torch", "ONEDNN_MAX_CPU_ISA")}
"""Switches that make a processor which does not exist. PyTorch asks the processor, not oneDNN, whether it has VNNI, and
takes oneDNN's integer products by that. Limited to AVX2 on a processor with VNNI they are wrong (`torch._int_mm`)."""

WITHOUT_SWITCH = frozenset({"paddle"})
"""Frameworks that run at no lower level. Paddle, too, asks the processor and not oneDNN: in the static graph products
of bfloat16 end with "std::exception" where `ONEDNN_MAX_CPU_ISA` is AVX2, and no other switch reaches its kernels."""

NUMPY = {"avx2": ("AVX512", "X86_V4"), "none": ("AVX512", "X86_V4", "AVX2", "FMA3", "X86_V3")}
"""Prefixes of the names of NumPy's dispatched features that a level lacks."""


def environment(level: str, framework: str) -> dict[str, str]:
    """The variables of a level for a framework, added to those of this process."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    switches = {name: value for name, value in LEVELS[level].items() if (framework, name) not in INCONSISTENT}
    flags = [os.environ.get("XLA_FLAGS", "")] + ([f"{XLA}={switches.pop(XLA)}"] if XLA in switches else [])
    dispatch = (name for name in __cpu_dispatch__ if __cpu_features__.get(name))
    features = [name for name in dispatch if name.startswith(NUMPY.get(level, ()))]
    numpy = {"NPY_DISABLE_CPU_FEATURES": " ".join(features)} if features else {}
    return {**os.environ, **switches, **numpy, "XLA_FLAGS": " ".join(filter(None, flags))}


def levels(framework: str, requested: Sequence[str] = ()) -> Sequence[str]:
    """The levels at which a framework runs, among those requested, or among all."""
    return ["as it is"] if framework in WITHOUT_SWITCH else requested or [*LEVELS]


def judge(framework: str, mode: str, level: str, tests: str, folder: Path) -> tuple[float, Record]:
    """The seconds and the record of one run.

    Raises:
        RecordError: the run left no record.
    """
    path = folder / f"{framework}-{mode}-{level}.json".replace(" ", "-")
    argv = [f"--mode={mode}", framework, f"--record={path}", f"--tests={tests}"]
    begun = time.monotonic()
    command = [sys.executable, "-m", "conformance", "run", *argv]
    subprocess.run(command, cwd=ROOT, env=environment(level, framework), stdout=subprocess.DEVNULL, check=False)
    return time.monotonic() - begun, load(path)


def main(arguments: Sequence[str]) -> int:
    """Runs the frameworks; 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="python -m tools processors", description="Other processors, by switches.")
    parser.add_argument("frameworks", nargs="+", metavar="FRAMEWORK")
    parser.add_argument("--level", action="append", choices=[*LEVELS], help="only this level; may be repeated")
    parser.add_argument("--tests", default="core", choices=("quick", "core", "all"))
    options = parser.parse_args(arguments)
    failed = False
    print("| framework | mode | instruction sets | seconds | tests | failing tests |\n|---|---|---|--:|--:|---|")
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        for framework in options.frameworks:
            info = ask(framework, "cpu")
            if isinstance(info, str):
                print(info, file=sys.stderr)
                return 2
            for mode in adapter_file(framework).modes or info.modes[:1]:
                for level in levels(framework, options.level or ()):
                    seconds, record = judge(framework, mode, level, options.tests, Path(folder))
                    failing = [f"{v.test} ({v.outcome})" for v in record.verdicts if v.outcome.bad]
                    failed = failed or bool(failing)
                    cells = (framework, mode, level, f"{seconds:.0f}", f"{len(record.verdicts)}")
                    print(f"| {' | '.join(cells)} | {', '.join(failing) or 'none'} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
