"""DeepSpeed-specific trainer of one rank, and its checkpoints: the engine's own files, and each rank's own state."""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import distributed

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from fixtures.recipe import Ranks
from frameworks.base import NO_SCALER, same_parts
from frameworks.contract import Capability, Gradients, Unsupported, Update
from frameworks.torch.core.arrays import DTYPES
from frameworks.torch.distributed.deepspeed import Engine, deepspeed
from frameworks.torch.distributed.rank_checkpoint import agreed
from frameworks.torch.distributed.ranks import RankTrainer, TorchWorker
from frameworks.torch.training.checkpoint import LOOP, go_on, gradients, loop_state
from frameworks.torch.training.optimizers import Stepper, steppers
from frameworks.torch.training.trainer import TorchTrainer

_TAG = "engine"
_AVERAGE = "average"


class EngineStepper(Stepper):
    """The optimizer that DeepSpeed's engine steps, and its schedule.

    Attributes:
        sharding: the engine, once there is one; from stage 1 on the optimizer's own parameters are parts of its own.
    """

    sharding: Engine

    @property
    def updates(self) -> int:
        """How many updates the engine has applied."""
        return int(self.sharding.engine.global_steps - self.sharding.engine.skipped_steps)

    def names(self) -> list[str]:
        """Optimizer state for each entry of a parameter."""
        entries = [value for values in self.optimizer.state.values() for value in values.items()]
        return sorted({name for name, value in entries if isinstance(value, torch.Tensor) and value.ndim})

    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """The gathered state by the network's parameters; every rank must call this."""
        if not self.sharding.stage:
            return self.optimizer.state | {
                p: self.optimizer.state[master]
                for p, master in self.sharding.updated().items()
                if master in self.optimizer.state
            }
        counters = [values["step"] for values in self.optimizer.state.values() if "step" in values]
        counted = {"step": torch.as_tensor(counters[0])} if counters else {}
        names = self.names()
        return {p: counted | {name: self.sharding.moment(p, name) for name in names} for p in self.sharding.parameters}

    def steps(self, state: Mapping[torch.Tensor, Mapping[str, Any]]) -> int:
        counters = [float(values["step"]) for values in state.values() if "step" in values]
        return int(max(counters)) if counters else self.updates


class EngineTrainer(RankTrainer):
    """A run's part of one rank of DeepSpeed."""

    sharding: Engine

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._outputs = self.sharding.outputs

    def _steppers(self) -> list[Stepper]:
        self._take_names()
        if self.recipe.precision.level == "O2":
            self.low = DTYPES[self.recipe.precision.format]
        every = steppers(self.recipe, self.slots, EngineStepper)
        optimizers = [stepper.optimizer for stepper in every]
        self.sharding = Engine(
            self.network, self._eager_losses, self.recipe, self.ranks, optimizers, every[0].scheduler
        )
        for stepper in every:
            cast(EngineStepper, stepper).sharding = self.sharding
        return every

    @property
    def stepper(self) -> EngineStepper:
        """The only optimizer."""
        return cast(EngineStepper, self.steppers[0])

    def autocast(self) -> nullcontext[None]:
        """No scope: the engine opens its own."""
        return nullcontext()

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        """The average is no part of the engine, whose scope it would be evaluated in."""
        with super().autocast():
            return super().predict_averaged(inputs)

    def _backward(self, losses: list[torch.Tensor], scaler: torch.amp.GradScaler | None) -> None:
        separate = losses if self.recipe.separate_losses else [sum(losses[1:], losses[0])]
        for index, loss in enumerate(separate, start=1):
            self.sharding.backward(loss, last=index == len(separate))

    def accumulate(self, batch: Batch, items: int) -> float:
        self.sharding.begin()
        return self._enter(batch, self._pass(batch, items, self.scaler))

    # the update

    def _gradients(self, window: Window, items: int) -> dict[str, Array]:
        former = self._put_aside()
        self._passes(window, items, None)
        result = {name: self.sharding.gradient(slot.tensor) for name, slot in self.slots.items()}
        self.sharding.discard()
        if former is not None:
            self.put_summed(former)
        return {name: self.slots[name].to_canonical(value) for name, value in result.items() if value is not None}

    def _put_aside(self) -> dict[str, torch.Tensor] | None:
        """Ends an open window without its gradients, which are returned; None if none is open."""
        if not self.sharding.is_open:
            return None
        summed = self.summed()
        for slot in self.slots.values():
            slot.tensor.grad = None
        self.sharding.end()
        self.sharding.discard()
        return summed

    def _finish(self, unscale_calls: int | None, inject: Gradients | None) -> Update:
        if inject is not None:
            raise Unsupported(Capability.EXPLICIT_UNSCALE, NO_SCALER)
        self.sharding.end()
        self._measure()
        before, rate = self._scale(), self.stepper.learning_rate
        engine = self.sharding.engine
        engine.step()
        norm = engine.get_global_grad_norm() if self.recipe.clip is not None else None
        skipped = not engine.was_step_applied()
        if self.average is not None and not skipped:
            with self.sharding.gathered():
                self.average.update_parameters(self.network)
        return self._report(before, rate, None if norm is None else float(norm), skipped=skipped)

    def _measure(self) -> None:
        self._gradient_bytes = sum(self.sharding.local_gradient_bytes(slot.tensor) for slot in self.slots.values())

    # what can be seen

    def parameters(self) -> dict[str, Array]:
        with self.sharding.gathered():
            return TorchTrainer.parameters(self)

    def master_parameters(self) -> dict[str, Array]:
        if self.recipe.precision.level != "O2":
            return self.parameters()
        return {name: slot.to_canonical(self.sharding.master(slot.tensor)) for name, slot in self.slots.items()}

    def resident_bytes(self) -> dict[str, int]:
        tensors = [slot.tensor for slot in self.slots.values()]
        sizes = super().resident_bytes() | {"parameter": sum(map(self.sharding.parameter_bytes, tensors))}
        if self.sharding.stage:
            names = self.stepper.names()
            sizes["optimizer"] = sum(self.sharding.local_state_bytes(tensor, names) for tensor in tensors)
        return sizes

    # the whole run

    def put_summed(self, summed: Mapping[str, torch.Tensor]) -> None:
        """Opens a window that has summed these gradients on this rank."""
        self.sharding.begin()
        with self.sharding.gathered():
            super().put_summed(summed)

    def save(self, path: Path) -> None:
        _save(self, path)

    def restore(self, path: Path) -> None:
        fresh = type(self)(self.mesh, self.model, self.recipe, None)
        _load(fresh, path)
        vars(self).update(vars(fresh))


def _save(trainer: EngineTrainer, path: Path) -> None:
    """Writes the run below the folder `path`, which all ranks share and which is made if it is not there.

    Raises:
        OSError: on every rank, if one of them cannot write.
    """
    agreed(lambda: _write(trainer, path), OSError, f"{path} cannot be written")


def _write(trainer: EngineTrainer, path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    average = None if trainer.average is None else trainer.average.state_dict()
    trainer.sharding.engine.save_checkpoint(str(path), tag=_TAG, client_state={_AVERAGE: average})
    own = {
        "count": distributed.get_world_size(),
        LOOP: loop_state(trainer),
        "open": trainer.sharding.is_open,
        "gradients": gradients(trainer),
        "buffers": dict(trainer.network.named_buffers()),
    }
    torch.save(own, _file_of(path, distributed.get_rank()))


def _load(trainer: EngineTrainer, path: Path) -> None:
    """Brings a run that has made no update to what `save` wrote; a rank more than there were takes rank 0's own part.

    Raises:
        ValueError: on every rank, if one of them cannot read a file or DeepSpeed loads nothing of it; the run is of no
            use then.
    """
    refused = f"{path} cannot be loaded"
    own = agreed(lambda: _read(path), ValueError, refused)
    state = agreed(lambda: _load_engine(trainer, path), ValueError, refused)
    agreed(lambda: _go_on(trainer, path, own, state), ValueError, refused)


def _read(path: Path) -> dict[str, Any]:
    """This rank's own part, rank 0's if there were fewer ranks."""
    rank = distributed.get_rank()
    first: dict[str, Any] = torch.load(_file_of(path, 0), weights_only=True)
    if rank == 0 or rank >= first["count"]:
        return first
    return torch.load(_file_of(path, rank), weights_only=True)


def _load_engine(trainer: EngineTrainer, path: Path) -> dict[str, Any]:
    """The client state that the engine returns."""
    loaded, state = trainer.sharding.engine.load_checkpoint(str(path), tag=_TAG)
    if loaded is None:
        raise ValueError(f"DeepSpeed found no checkpoint in {path}")
    return dict(state)


def _go_on(trainer: EngineTrainer, path: Path, own: dict[str, Any], state: dict[str, Any]) -> None:
    averages = [] if trainer.average is None else [_AVERAGE]
    same_parts(path, [name for name in (_AVERAGE,) if state[name] is not None], averages)
    if trainer.average is not None:
        trainer.average.load_state_dict(state[_AVERAGE])
    go_on(trainer, own[LOOP])
    for name, buffer in trainer.network.named_buffers():
        buffer.copy_(own["buffers"][name])
    if own["open"]:
        trainer.put_summed(own["gradients"])


def _file_of(path: Path, rank: int) -> Path:
    return path / f"rank-{rank}.pt"


class DeepSpeedWorker(TorchWorker):
    """One rank's process, whose trainers are DeepSpeed's engines."""

    def __init__(self, rank: int, count: int, folder: Path, device: str, mode: str) -> None:
        super().__init__(rank, count, folder, device, mode)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count))
        deepspeed().init_distributed("gloo", auto_mpi_discovery=False, dist_init_required=False)

    def kind(self, ranks: Ranks) -> type[RankTrainer]:
        return EngineTrainer
