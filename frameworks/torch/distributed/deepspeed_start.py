"""Requirements of DeepSpeed's ranks (DeepSpeed and its compiled operation), and what it lacks, with attempts."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np

from fixtures.data import sincos_batch
from fixtures.model import Model
from fixtures.models import scalar, sincos
from fixtures.recipe import SGD, Adam, DynamicScaling, Precision, Ranks, Recipe, StaticScaling
from frameworks.base import BaseRankGroup, ranks_of, window_across_ranks
from frameworks.contract import Attempt, Capability, Unsupported

MODE = "deepspeed"
NOT_INSTALLED = "DeepSpeed is not installed: DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed"
BUILD_S = 600.0
"""Timeout of the compilation in seconds. It takes three minutes on two busy cores."""
_OPERATION = "deepspeed_shm_comm"
_BUILD = """
from deepspeed.accelerator import get_accelerator
get_accelerator().create_op_builder("ShareMemCommBuilder").load()
"""


@cache
def is_installed() -> bool:
    """Returns whether DeepSpeed is installed."""
    return find_spec("deepspeed") is not None


@cache
def problem() -> str:
    """Why DeepSpeed's ranks cannot start here, "" if they can. The first call may compile for `BUILD_S` seconds."""
    if not is_installed():
        return NOT_INSTALLED
    try:
        _prepare()
    except (RuntimeError, OSError) as error:
        return f"DeepSpeed's ranks cannot start: {error}"
    return ""


def require() -> None:
    """Raises RuntimeError if DeepSpeed's ranks cannot be started here."""
    if problem():
        raise RuntimeError(problem())


def environment() -> dict[str, str]:
    """Environment variables of DeepSpeed's ranks: the CPU, and the tools of this environment if it is not activated."""
    tools = str(Path(sys.executable).parent)
    return {"DS_ACCELERATOR": "cpu", "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), tools])}


def _prepare() -> None:
    """Compiles the operation that DeepSpeed's ranks would compile as they start, unless that has been done.

    Processes that prepare at the same time do so one after the other. The lock of a build that was killed, which
    PyTorch would wait for without a limit, is removed.

    Raises:
        RuntimeError: the compilation failed or timed out.
    """
    import fcntl  # not on Windows, where DeepSpeed compiles no such operation

    from torch.utils.cpp_extension import get_default_build_root

    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{_OPERATION}.made").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        stale = list(root.rglob(f"{_OPERATION}/lock"))
        if file.read() == _made_by() and not stale and any(root.rglob(f"{_OPERATION}.so")):
            return
        for lock in stale:
            lock.unlink()
        _build()
        file.truncate(0)
        file.write(_made_by())


def _made_by() -> str:
    """The inputs of the compilation: PyTorch compiles again when one of them changes."""
    packages = [f"{name} {version(name)}" for name in ("deepspeed", "torch")]
    return " ".join([*packages, sys.version, str(shutil.which("ninja", path=environment()["PATH"]))])


def _build() -> None:
    try:
        subprocess.run(
            [sys.executable, "-c", _BUILD],
            env={**os.environ, **environment()},
            capture_output=True,
            text=True,
            timeout=BUILD_S,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as error:
        errors = str(getattr(error, "stderr", None) or "")
        raise RuntimeError(f"DeepSpeed's {_OPERATION} could not be compiled: {error} {errors[-500:]}") from error


Make = Callable[[Model, Recipe], BaseRankGroup]

WIDE_HEADS = (
    "ZeRO has a group's parameters in one flat tensor, which takes the widest format for all of them, and at stage 0 "
    "DeepSpeed refuses to reduce float64 gradients"
)
_FLOAT16 = (
    "DeepSpeed's fp16 is refused on a CPU without AVX512-FP16, and skips its first updates on others, by a loss scale "
    "that begins at 65536"
)
_SCALING = "DeepSpeed scales losses in its fp16 alone, which makes weights float16 and is refused on most CPUs"
_LOW_AVERAGE = "AveragedModel averages a model's own parameters, which are low where DeepSpeed keeps the masters apart"
_LEVEL = Ranks(2, "gradients")
_REFUSED: dict[Capability, str] = {
    Capability.O1_FLOAT16: "torch_autocast of float16 brings a loss scale that no setting changes or turns off",
    Capability.O2_FLOAT16: _FLOAT16,
    Capability.O3_FLOAT16: _FLOAT16,
    Capability.DYNAMIC_SCALING: _SCALING,
    Capability.STATIC_SCALING: _SCALING,
    Capability.SCALING_FACTORS: _SCALING,
    Capability.EXPLICIT_UNSCALE: _SCALING,
    Capability.SECOND_UNSCALE: _SCALING,
    Capability.TWO_OPTIMIZERS: "deepspeed.initialize takes one optimizer",
    Capability.MISSING_GRADIENTS: "DeepSpeed gives a parameter without a gradient zeros, by which Adam moves it",
    Capability.FLOAT64_HEADS: WIDE_HEADS,
    Capability.RANKS_HYBRID: "DeepSpeed has given up MiCS, by which it shared parameters out in each of several groups",
    Capability.RANKS_RESHAPE: "a checkpoint of ZeRO is loaded by as many ranks as saved it, unless ds_to_universal has "
    "converted it",
}
_RANKS = tuple(capability for capability in Capability if capability.value.startswith("ranks."))


def find_refusals() -> dict[Capability, str]:
    """Unsupported capabilities of DeepSpeed here, with reasons; all capabilities if it cannot be started."""
    return _REFUSED | (dict.fromkeys(_RANKS, problem()) if problem() else {})


def require_together(model: Model, recipe: Recipe, make: Make) -> None:
    """Refuses a combination whose parts DeepSpeed supports only separately.

    Raises:
        Unsupported: float64 heads, or an average of weights that have masters.
    """
    ranks = ranks_of(recipe)
    if any(model.parameter_format(name) == "float64" for name in model.parameter_shapes()):
        raise Unsupported(Capability.FLOAT64_HEADS, WIDE_HEADS, partial(keeps_formats, make, ranks))
    if recipe.average is not None and recipe.precision.level == "O2":
        raise Unsupported(Capability.AVERAGE, _LOW_AVERAGE, partial(trains, make, model, recipe))


def attempts(make: Make) -> dict[Capability, Attempt]:
    """Attempts that differ from PyTorch without ranks; `make` creates ranks without the adapter's guards."""
    scaled = {
        Capability.DYNAMIC_SCALING: Recipe(SGD(), scaling=DynamicScaling(initial=4.0)),
        Capability.STATIC_SCALING: Recipe(SGD(), scaling=StaticScaling(4.0)),
        Capability.SCALING_FACTORS: Recipe(SGD(), scaling=DynamicScaling(growth=4.0, backoff=0.25)),
        Capability.EXPLICIT_UNSCALE: Recipe(SGD(), scaling=DynamicScaling(initial=4.0)),
        Capability.SECOND_UNSCALE: Recipe(SGD(), scaling=DynamicScaling(initial=4.0)),
        Capability.O2_FLOAT16: Recipe(SGD(), Precision("O2", "float16")),
        Capability.O3_FLOAT16: Recipe(SGD(), Precision("O3", "float16")),
        Capability.O2_BFLOAT16: Recipe(SGD(), Precision("O2", "bfloat16")),
        Capability.TWO_OPTIMIZERS: Recipe(SGD(), optimizers=2),
    }
    own: dict[Capability, Attempt] = {
        capability: partial(trains, make, scalar(), recipe) for capability, recipe in scaled.items()
    }
    return own | {
        Capability.O1_FLOAT16: partial(_without_a_scale, make),
        Capability.FLOAT64_HEADS: partial(keeps_formats, make, _LEVEL),
        Capability.MISSING_GRADIENTS: partial(stays_without_gradient, make, _LEVEL),
    }


def trains(make: Make, model: Model, recipe: Recipe) -> bool:
    """Returns whether each of two updates moves every parameter; below level O2 they must be float32."""
    run = make(model, recipe.replace(ranks=recipe.ranks or _LEVEL))
    ones = {name: np.ones(shape, np.float32) for name, shape in model.parameter_shapes().items()}
    states = [run.states()[0]]
    for _ in range(2):
        run.apply_gradients([[ones]] * run.count)
        states.append(run.states()[0])
    names = [f"parameter/{name}" for name in ones]
    if recipe.precision.level in ("O0", "O1") and any(states[0][name].dtype != np.float32 for name in names):
        return False
    return all(np.all(after[name] != before[name]) for before, after in pairwise(states) for name in names)


def keeps_formats(make: Make, ranks: Ranks) -> bool:
    """Returns whether float64 heads on float32 layers keep both formats in an update."""
    model = sincos(4)
    run = make(model, Recipe(SGD(), ranks=ranks))
    run.update(window_across_ranks((sincos_batch(4),), ranks.count))
    state = run.states()[0]
    result = {name: state[f"parameter/{name}"].dtype.name for name in model.parameter_shapes()}
    return all(model.parameter_format(name) == result[name] for name in result)


def _without_a_scale(make: Make) -> bool:
    """Returns whether a gradient that would overflow float32 under any large scale moves a weight."""
    run = make(scalar(0.0), Recipe(SGD(2.0**-120), Precision("O1", "float16"), ranks=_LEVEL))
    large = {name: np.full(shape, 2.0**120, np.float32) for name, shape in scalar().parameter_shapes().items()}
    run.apply_gradients([[large]] * 2)
    state = run.states()[0]
    return all(np.all(state[f"parameter/{name}"] == -1.0) for name in large)


def stays_without_gradient(make: Make, ranks: Ranks) -> bool:
    """Returns whether a parameter that has moved with Adam stays where it is in an update that gives it no gradient."""
    run = make(scalar(), Recipe(Adam(), ranks=ranks))
    weight, bias = scalar().parameter_shapes()
    ones = {name: np.ones(shape, np.float32) for name, shape in scalar().parameter_shapes().items()}
    run.apply_gradients([[ones]] * 2)
    before = run.states()[0]
    run.apply_gradients([[{weight: ones[weight]}]] * 2)
    return np.array_equal(run.states()[0][f"parameter/{bias}"], before[f"parameter/{bias}"])
