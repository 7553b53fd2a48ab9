"""`StaticFramework`, Paddle's static graph on one device, and its programs of single operations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import distributed
from paddle.distributed import fleet
from paddle.utils import unique_name

from fixtures.arrays import Array
from fixtures.model import SCALE, Batch, FunctionUse, Model, Window
from fixtures.recipe import Ranks, Recipe
from frameworks.base import BaseFormats, BaseTrainer, casts_of, quantizer_attempts, technique_attempts, with_ranks
from frameworks.base.host import short_call_stacks
from frameworks.contract import (
    Attempt,
    Capability,
    CastRule,
    Conventions,
    FunctionFormat,
    FunctionResult,
    NumberFormats,
    OpResult,
    ScalerRule,
    Update,
)
from frameworks.paddle.core.layers import OPERATIONS
from frameworks.paddle.core.settings import STATIC, format_name, place
from frameworks.paddle.core.ways import PlateauRun
from frameworks.paddle.distributed import PaddleWorker, file_of, read_parts, run_collectively
from frameworks.paddle.framework import IN_BOTH_GRAPHS, OneGraph, has_ranks
from frameworks.paddle.quantization import PaddlePostTraining, PaddleQuantizers, gpu_kernel_attempts
from frameworks.paddle.static import attempts
from frameworks.paddle.static.declarations import acts, refusals, static_attempts
from frameworks.paddle.static.programs import (
    MASTER,
    BuiltProgram,
    Outputs,
    ProgramState,
    Reduction,
    array_of,
    encode_for_executor,
    reduced_bytes,
)
from frameworks.paddle.static.trainer import StaticTrainer
from frameworks.paddle.training.optimizers import REFUSED_IN_BOTH, UpdateAfterLosses, refused_attempts

_OPERATIONS = OPERATIONS | {"squared_error": lambda a, b: paddle.nn.functional.square_error_cost(a, b).mean()}
"""The operations of the static graph; squared error is written out, because `mse_loss` refuses inputs to cast."""


def run_operation(function: Callable[..., Any], arrays: Sequence[Array]) -> OpResult:
    """Builds a program of one operation inside the open precision scope and runs it."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with short_call_stacks(), unique_name.guard(), paddle.static.program_guard(main, startup):
        inputs = [paddle.static.data(f"x{i}", list(a.shape), str(a.dtype)) for i, a in enumerate(arrays)]
        result = function(*inputs)
    executor = paddle.static.Executor(place())
    with short_call_stacks(), paddle.static.scope_guard(paddle.static.Scope()):
        executor.run(startup)
        feed = {f"x{i}": encode_for_executor(a) for i, a in enumerate(arrays)}
        (value,) = executor.run(main, feed=feed, fetch_list=[result], return_numpy=False)
    return OpResult(array_of(value), format_name(result.dtype))


class StaticFormats(BaseFormats):
    """`paddle.cast` to integers, whose result an executor fetches; casts to float8 show no codes."""

    def casts(self) -> Mapping[str, CastRule]:
        return {}

    def encode(self, values: Array, format_name: str) -> Array:
        return run_operation(lambda x: paddle.cast(x, format_name), [values]).value.view(np.uint8)

    def decode(self, codes: Array, format_name: str) -> Array:
        return run_operation(lambda x: paddle.cast(x, "float32"), [codes.view(format_name)]).value


def _call_user_function(a: Any, b: Any, c: Any) -> dict[str, Any]:
    """The operation of `fixtures.model`; its backward pass cannot ask for needed gradients, and returns all."""

    def forward(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
        return SCALE * a * b, b + c

    def backward(y: Any, z: Any) -> tuple[Any, Any, Any]:
        return 2.0 * SCALE * y * b, SCALE * y * a + z, paddle.assign(z)

    return dict(zip("yz", paddle.static.nn.static_pylayer(forward, [a, b, c], backward), strict=True))


def function_used(use: FunctionUse, inputs: tuple[Array, ...]) -> FunctionResult:
    """The gradients of a program that uses the operation."""
    store = ProgramState()
    has_gradient: list[bool] = []

    def make(_: Any) -> Outputs:
        tensors = [paddle.static.data(name, list(x.shape), "float32") for name, x in zip("abc", inputs, strict=True)]
        for tensor, needed in zip(tensors, use.needs, strict=True):
            tensor.stop_gradient = not needed
        losses = [
            outputs[name].sum()
            for outputs in (_call_user_function(*tensors) for _ in range(use.times))
            for name in use.outputs
        ]
        gradients = paddle.static.gradients([paddle.add_n(losses)], tensors)
        has_gradient.extend(gradient is not None for gradient in gradients)
        return tuple(gradient for gradient in gradients if gradient is not None), {}

    values = iter(store.run(store.build(make), dict(zip("abc", inputs, strict=True))))
    return FunctionResult(None, tuple(next(values) if present else None for present in has_gradient))


class PlateauProgram(PlateauRun):
    """A program that updates one weight by a schedule's rate; the schedule is saved."""

    def begin(self) -> None:
        self.part, self._store = self.scheduler, ProgramState()
        self._built = self._store.build(self._make)

    def _make(self, startup: Any) -> Outputs:
        loss = paddle.create_parameter([1], "float32").sum()
        paddle.optimizer.SGD(self.scheduler).minimize(loss, startup_program=startup)
        return (loss,), {}

    def rate(self) -> float:
        """The rate that the executor sets for an update."""
        self._store.run(self._built, {})
        return float(self._store.read(self._built.program.lr_name))


class StaticFramework(OneGraph):
    """Paddle's documented training API in the static graph: a program for each shape of a batch."""

    member = "frameworks.paddle.static.framework:StaticMember"
    own_modes = (STATIC,)
    plateau_run = PlateauProgram

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        super().__init__(device, mode)
        paddle.enable_static()

    def refusals(self) -> Mapping[Capability, str]:
        return self.leave_out_ranks(refusals(self.device))

    def supported_capabilities(self) -> Collection[Capability]:
        return IN_BOTH_GRAPHS | casts_of(self.rule(NumberFormats))

    def attempts(self) -> Mapping[Capability, Attempt]:
        result: dict[Capability, Attempt] = {
            **static_attempts(self.device),
            **{c: attempt for c, attempt in refused_attempts().items() if c in REFUSED_IN_BOTH},
            **gpu_kernel_attempts(self.device),
            **quantizer_attempts(PaddleQuantizers()),
            **technique_attempts(PaddlePostTraining()),
        }
        if not has_ranks(self.device):
            return result
        return with_ranks(result, self.ranks_of_a_run, None, reshaped="replicated")

    def function_ways(self) -> Mapping[str, FunctionFormat]:
        return {"static_pylayer": "input"}

    def conventions(self) -> Conventions:
        rule = ScalerRule(minimum=1.0, maximum=float(np.finfo(np.float32).max))
        return replace(super().conventions(), adam_correction="float32", compiled=True, scaler=rule)

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array]) -> BaseTrainer:
        return StaticTrainer(model, recipe, weights)

    def function_used(
        self, use: FunctionUse, inputs: tuple[Array, Array, Array], variant: str | None = None
    ) -> FunctionResult:
        self.require(Capability.FUNCTION_USES)
        if variant is not None:
            self.require(Capability.RECOMPUTE)
        return function_used(use, inputs)

    def rules(self) -> Mapping[type, Callable[[], Any]]:
        return {NumberFormats: StaticFormats}

    def scales_after_bfloat16(self) -> bool:
        return acts(self.device, attempts.scales_after_bfloat16)

    def compute(self, op: str, arrays: Sequence[Array]) -> OpResult:
        return run_operation(_OPERATIONS[op], arrays)


_OWN = ("count", "buffers", "generator")
_COUNTERS = ("schedule", "steps", "beta1_pow", "beta2_pow")


class StaticRankTrainer(StaticTrainer):
    """One rank's part of a run. Methods that take data, `save` and `restore` are collective."""

    def __init__(self, ranks: Ranks, model: Model, recipe: Recipe, weights: Mapping[str, Array]) -> None:
        if ranks.level != "replicated":
            _shard()
        super().__init__(model, recipe, weights, Reduction(ranks))
        self.ranks = ranks
        self._gradient_bytes = self._reduced = 0

    def anew(self) -> StaticRankTrainer:
        resumed = StaticRankTrainer(self.ranks, self.model, self.recipe, self.model.weights(self.recipe.seed))
        resumed.declares = self.declares
        return resumed

    def accumulate(self, batch: Batch, items: int) -> float:
        if self.pending is not None:
            raise self.refusal(Capability.ACCUMULATION)
        return self._update_by(batch, items)

    def update_share(self, window: Window, items: int) -> Update:
        """Makes one update from this rank's window; all ranks' windows hold `items` items and are equally long."""
        if len(window) != 1:
            raise self.refusal(Capability.ACCUMULATION)
        self.accumulate(window[0], items)
        return self.apply()

    def gradients_share(self, window: Window, items: int) -> dict[str, Array]:
        """`gradients` of all ranks' windows together, of which this rank has one."""
        return self._gradients(window, items)

    def _present(self, heads: tuple[str, ...]) -> tuple[str, ...]:
        """The heads with targets on any rank: every rank's program has to reduce the same gradients."""
        every = self.programs.heads
        if len(every) < 2 or self.ranks.count < 2:
            return heads
        with paddle.base.dygraph.guard():
            used = paddle.to_tensor([float(head in heads) for head in every])
            distributed.all_reduce(used)
            return tuple(head for head, count in zip(every, used.numpy(), strict=True) if count)

    def _run(self, built: BuiltProgram, feed: Mapping[str, Array]) -> tuple[float, UpdateAfterLosses]:
        reduced = reduced_bytes(built.program)
        self._gradient_bytes, self._reduced = sum(reduced), self._reduced + len(reduced)
        return super()._run(built, feed)

    def resident_bytes(self) -> dict[str, int]:
        """Bytes that this rank holds: "parameter", "gradient" (of the last window), "optimizer", "buffer"."""
        slots = [value for name, value in self.optimizer_state().items() if not name.startswith(_COUNTERS)]
        masters = [self.store.read(name) for name in self.store.initial if MASTER in name]
        return {
            "parameter": sum(value.nbytes for value in self.parameters().values()),
            "gradient": self._gradient_bytes,
            "optimizer": sum(value.nbytes for value in [*slots, *masters]),
            "buffer": sum(value.nbytes for value in self.buffers().values()),
        }

    def collectives(self) -> dict[str, int]:
        """The numbers of collective operations in the programs that ran since the last call."""
        reduced, self._reduced = self._reduced, 0
        return {"gradients": reduced}

    def save(self, path: Path) -> None:
        """Writes into a folder that all ranks share; OSError on every rank, if one of them cannot write."""
        run_collectively(lambda: self._write(path), self.ranks.count, OSError, f"{path} cannot be written")

    def _write(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        rank = distributed.get_rank()
        if rank == 0:
            super().save(path)
        own = {"count": self.ranks.count, "buffers": self.buffers(), "generator": self.stream.state}
        paddle.save(own, str(file_of(path, rank)))

    def restore(self, path: Path) -> None:
        """Restores a checkpoint of any number of ranks; an additional rank begins with rank 0's own state.

        ValueError on every rank, if a rank cannot read a file.
        """
        refused = f"{path} cannot be loaded"
        resumed = run_collectively(lambda: self._load_rank(path), self.ranks.count, ValueError, refused)
        vars(self).update(vars(resumed))

    def _load_rank(self, path: Path) -> StaticTrainer:
        resumed = self.load_run(path)
        rank, own = distributed.get_rank(), read_parts(file_of(path, 0), _OWN, return_numpy=True)
        if 0 < rank < own["count"]:
            own = read_parts(file_of(path, rank), _OWN, return_numpy=True)
        for name, value in own["buffers"].items():
            resumed.store.write(self.stored_names[f"buffer/{name}"], value)
        resumed.stream.state = own["generator"]
        return resumed


def _shard() -> None:
    """Shards by fleet, as documented for programs of the static graph.

    Raises:
        TypeError: the program is of the new IR.
    """
    strategy = fleet.DistributedStrategy()
    strategy.sharding = True
    fleet.init(is_collective=True, strategy=strategy)
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        loss = paddle.nn.Linear(2, 1)(paddle.static.data("x", [1, 2], "float32")).sum()
        fleet.distributed_optimizer(paddle.optimizer.Adam(), strategy=strategy).minimize(loss, startup)


class StaticMember(PaddleWorker):
    """One rank's process in the process group; creates the rank's trainers of the static graph."""

    def __init__(self, rank: int, count: int, folder: Path, device: str, mode: str) -> None:
        super().__init__(rank, count, folder, device, mode)
        self._framework = StaticFramework(device, mode)

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array]) -> StaticRankTrainer:  # type: ignore[override]
        """This rank's part of a new run."""
        run = StaticRankTrainer(recipe.ranks or Ranks(self.count), model, recipe, weights)
        return self._framework.bind(run)

    def barrier(self) -> None:
        with paddle.base.dygraph.guard():
            super().barrier()
