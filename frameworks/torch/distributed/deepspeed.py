"""DeepSpeed's engine for a network: configuration, windows, state, and the trainer and checkpoints of one rank."""

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from torch import distributed

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from fixtures.recipe import DynamicScaling, Ranks, Recipe, StaticScaling
from frameworks.base import NO_SCALER, same_parts
from frameworks.contract import Capability, Gradients, Unsupported, Update
from frameworks.torch.core.layers import Network
from frameworks.torch.core.settings import DTYPES
from frameworks.torch.distributed.ranks import RankTrainer, TorchWorker, file_of_rank, run_collectively
from frameworks.torch.distributed.sharding import OF_ZERO, CountedReductions, Losses, WithLosses
from frameworks.torch.training.optimizers import Stepper, steppers
from frameworks.torch.training.trainer import LOOP, TorchTrainer

_STAGES = {"replicated": 0, "optimizer": 1, "gradients": 2, "full": 3}
"""ZeRO's stage by level of sharding."""
_REDUCED = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_BUCKET = 2**20
"""Entries of the buffer through which gradients are reduced; DeepSpeed's default takes 2 GB for each rank."""
_TAG, _AVERAGE = "engine", "average"
"""Names of the engine's state and of the average in a checkpoint."""


@cache
def deepspeed() -> Any:
    """The module of DeepSpeed, with less logging."""
    module = import_module("deepspeed")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    return module


def config_of(recipe: Recipe, ranks: Ranks) -> dict[str, Any]:
    """DeepSpeed's configuration for a recipe with these ranks; the caller calls the step that ends a window.

    Small parameters are sharded like large ones. Gradients are reduced over ranks in the recipe's format.
    """
    stage = _STAGES[ranks.level]
    return _precision_of(recipe, stage) | {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": recipe.accumulation,
        "gradient_clipping": recipe.clip or 0.0,
        "communication_data_type": _REDUCED[ranks.reduce],
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": _BUCKET,
            "stage3_param_persistence_threshold": 0,
            **({"mics_shard_size": ranks.count // ranks.replicas} if ranks.replicas > 1 and stage == 3 else {}),
            **OF_ZERO[recipe.way("sharding")],
        },
    }


def _precision_of(recipe: Recipe, stage: int) -> dict[str, Any]:
    """The configured formats of a recipe; DeepSpeed scales losses only in float16."""
    format_name, level = recipe.precision.format, recipe.precision.level
    config: dict[str, Any] = {}
    if level == "O1":
        config["torch_autocast"] = {"enabled": True, "dtype": format_name, "lower_precision_safe_modules": []}
    elif level == "O2" or (level == "O3" and (stage or format_name == "float16")):
        config[_REDUCED[format_name]] = {"enabled": True}
        # on a CPU, batch norm with low parameters needs low statistics too
        config["data_types"] = {"buffer_dtype": _REDUCED[format_name]}
        if level == "O3" and format_name == "bfloat16":
            config["bf16"] |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    match recipe.scaling:
        case StaticScaling(scale=scale):
            config["fp16"] = {"enabled": True, "loss_scale": scale}
        case DynamicScaling(enabled=True):
            config["fp16"] = {"enabled": True, "loss_scale": 0}
    return config


class Engine:
    """A network that DeepSpeed trains with an optimizer, on every rank.

    Attributes:
        engine: DeepSpeed's engine.
        stage: ZeRO's stage, 0 to 3.
        parameters: the network's; they keep their identity, and at stage 3 are empty between passes.
        shapes: shape of each whole parameter.
    """

    def __init__(
        self,
        network: Network,
        losses: Losses,
        recipe: Recipe,
        ranks: Ranks,
        *,
        optimizers: Sequence[torch.optim.Optimizer],
        scheduler: Any = None,
    ) -> None:
        self.stage = _STAGES[ranks.level]
        self.parameters = list(network.parameters())
        self.shapes = {parameter: parameter.shape for parameter in self.parameters}
        _forget_autocast()
        self.engine, *_ = deepspeed().initialize(
            model=WithLosses(network, losses),
            optimizer=optimizers[0] if len(optimizers) == 1 else list(optimizers),
            lr_scheduler=scheduler,
            config=config_of(recipe, ranks),
            dist_init_required=False,
        )
        for option, value in OF_ZERO[recipe.way("sharding")].items():
            if (result := getattr(self.engine, f"zero_{option}")()) != value:
                raise RuntimeError(f"zero_{option} of the engine: got {result!r}, want {value!r}")
        self._open = ExitStack()
        self.is_open = False
        self._ends = True
        self._reduced = CountedReductions()

    def losses(self, inputs: torch.Tensor, targets: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        return self.engine(inputs, targets)

    def sum_products(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.engine(torch.empty(0), {}, gradients)[0]

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        """Runs one backward pass; `last`: it is the last one of its forward pass."""
        if not self.is_open:
            self.engine.set_gradient_accumulation_boundary(self._ends and last)
        with self._reduced:
            self.engine.backward(loss, retain_graph=not last, scale_wrt_gas=False)

    # windows

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        self._ends = last
        self.engine.set_gradient_accumulation_boundary(last)
        yield

    def begin(self) -> None:
        """Opens a window that only `end` closes: gradients are not reduced until then."""
        if self.is_open:
            return
        self.is_open = True
        if self.stage:
            self._open.enter_context(self.engine.coalesce_grad_reduction())
        else:
            self.engine.set_gradient_accumulation_boundary(False)

    def end(self) -> None:
        """Reduces the summed gradients of the open window; does nothing if none is open."""
        if not self.is_open:
            return
        self.is_open = False
        with self._reduced:
            self._open.close()
            self.engine.set_gradient_accumulation_boundary(True)
            if not self.stage:
                self.engine.allreduce_gradients()

    def discard(self) -> None:
        """Discards reduced gradients without a step."""
        if self.stage in (1, 2):
            for parameter in self.parameters:
                deepspeed().utils.safe_set_full_grad(parameter, torch.zeros_like(parameter, dtype=torch.float32))
        self.engine.optimizer.zero_grad(set_to_none=True)

    def reductions(self) -> int:
        """Number of reduced gradients since the last call, from the number of reduced entries."""
        entries, self._reduced.entries = self._reduced.entries, 0
        return round(entries / sum(map(math.prod, self.shapes.values()))) * len(self.parameters)

    # state of this rank

    def gather_parameters(self, *, writing: bool = False) -> AbstractContextManager[None]:
        """Within the context, parameters are gathered; with `writing`, rank 0's changes are broadcast."""
        writer = 0 if writing else None
        return deepspeed().zero.GatheredParameters(self.parameters, modifier_rank=writer, enabled=self.stage == 3)

    def gradient(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """The gathered reduced gradient of a parameter; every rank must call this."""
        return self._whole(parameter, deepspeed().utils.safe_get_full_grad(parameter))

    def master(self, parameter: torch.Tensor) -> torch.Tensor:
        """The gathered master of a parameter; every rank must call this."""
        if not self.stage:
            return self.masters_by_parameter().get(parameter, parameter)
        result: torch.Tensor = deepspeed().utils.safe_get_full_fp32_param(parameter)
        return result.reshape(self.shapes[parameter])

    def masters_by_parameter(self) -> dict[torch.Tensor, torch.Tensor]:
        """The masters by parameter at stage 0; empty if the optimizer updates none."""
        optimizer = self.engine.optimizer
        low, wide = (getattr(optimizer, name, []) for name in ("fp16_groups", "fp32_groups"))
        return {p: m for own, masters in zip(low, wide, strict=True) for p, m in zip(own, masters, strict=True)}

    def moment(self, parameter: torch.Tensor, name: str) -> torch.Tensor | None:
        """The gathered optimizer state of a parameter under a name; every rank must call this."""
        self._link()
        return self._whole(parameter, deepspeed().utils.safe_get_full_optimizer_state(parameter, name))

    def _whole(self, parameter: torch.Tensor, value: torch.Tensor | None) -> torch.Tensor | None:
        return None if value is None else value.reshape(self.shapes[parameter])

    def parameter_bytes(self, parameter: torch.Tensor) -> int:
        """Bytes that this rank holds of a parameter between updates."""
        own = parameter.numel()
        if self.stage == 3:
            own += self._count_own(parameter, parameter.ds_tensor)
        return own * parameter.element_size()

    def local_gradient_bytes(self, parameter: torch.Tensor) -> int:
        """Bytes that this rank holds of a parameter's reduced gradient."""
        if self.stage == 3:
            part = deepspeed().utils.safe_get_local_grad(parameter)
            return self._count_own(parameter, part) * int(part.element_size())
        whole = 0 if parameter.grad is None else parameter.grad.numel() * parameter.grad.element_size()
        mapping = parameter._hp_mapping if self.stage else None
        if mapping is None:
            return whole
        part = mapping.get_lp_grad_fragment(parameter._index_in_param_group)
        return whole + part.numel() * int(part.element_size())

    def local_state_bytes(self, parameter: torch.Tensor, names: Sequence[str]) -> int:
        """Bytes that this rank holds of a parameter's masters and moments of these names, from stage 1 on."""
        if self.stage == 3:
            utils = deepspeed().utils
            parts = [utils.safe_get_local_fp32_param(parameter)]
            parts += [utils.safe_get_local_optimizer_state(parameter, name) for name in names]
            return sum(self._count_own(parameter, part) * part.element_size() for part in parts)
        self._link()
        mapping = parameter._hp_mapping
        if mapping is None:
            return 0
        parts = [mapping.get_hp_fragment(name) for name in (None, *names)]
        return sum(part.numel() * part.element_size() for part in parts)

    def _link(self) -> None:
        """Makes DeepSpeed link the moments of all groups at stages 1 and 2; a step links only the first group's."""
        optimizer = self.engine.optimizer
        if self.stage in (1, 2) and optimizer.optimizer.state:
            optimizer._hp_optimizer_states_linked = False
            optimizer._lazy_init_hp_params_optimizer_state()

    def _count_own(self, parameter: torch.Tensor, part: torch.Tensor) -> int:
        """Number of entries of this rank's part of a parameter at stage 3, without the padding of the last part."""
        before = part.numel() * distributed.get_rank()
        return max(0, min(part.numel(), math.prod(self.shapes[parameter]) - before))


def _forget_autocast() -> None:
    """Resets `torch_autocast`, whose format would otherwise apply to all later engines."""
    state = import_module("deepspeed.runtime.torch_autocast")
    vars(state).update(TORCH_AUTOCAST_INITIALIZED=False, TORCH_AUTOCAST_DTYPE=None)


class EngineStepper(Stepper):
    """The optimizer that DeepSpeed's engine steps, and its schedule.

    Attributes:
        sharding: the engine, once there is one; from stage 1 on the optimizer's parameters are the engine's flat parts.
    """

    sharding: Engine

    def names(self) -> list[str]:
        """Names of the optimizer state that has a value for each entry of a parameter."""
        entries = [value for values in self.optimizer.state.values() for value in values.items()]
        return sorted({name for name, value in entries if isinstance(value, torch.Tensor) and value.ndim})

    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """The gathered state by the network's parameters; every rank must call this."""
        if not self.sharding.stage:
            return self.optimizer.state | {
                p: self.optimizer.state[master]
                for p, master in self.sharding.masters_by_parameter().items()
                if master in self.optimizer.state
            }
        counters = [values["step"] for values in self.optimizer.state.values() if "step" in values]
        counted = {"step": torch.as_tensor(counters[0])} if counters else {}
        names = self.names()
        return {p: counted | {name: self.sharding.moment(p, name) for name in names} for p in self.sharding.parameters}

    def steps(self, state: Mapping[torch.Tensor, Mapping[str, Any]]) -> int:
        engine = self.sharding.engine
        counters = [float(values["step"]) for values in state.values() if "step" in values]
        return int(max(counters) if counters else engine.global_steps - engine.skipped_steps)


class EngineTrainer(RankTrainer):
    """One rank's part of a run with DeepSpeed."""

    sharding: Engine

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._outputs = self.sharding.engine

    def _steppers(self) -> list[Stepper]:
        self._take_names()
        if self.recipe.precision.level == "O2":
            self.low = DTYPES[self.recipe.precision.format]
        every = steppers(self.recipe, self.slots, EngineStepper)
        self.sharding = Engine(
            self.network,
            self._eager_losses,
            self.recipe,
            self.ranks,
            optimizers=[stepper.optimizer for stepper in every],
            scheduler=every[0].scheduler,
        )
        for stepper in every:
            cast(EngineStepper, stepper).sharding = self.sharding
        return every

    @property
    def stepper(self) -> EngineStepper:
        """The only optimizer."""
        return cast(EngineStepper, self.steppers[0])

    def autocast(self) -> nullcontext[None]:
        """A null context: the engine opens its own scope."""
        return nullcontext()

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        """Evaluates the average in PyTorch's own precision scope, since the average is outside of the engine."""
        with super().autocast():
            return super().predict_averaged(inputs)

    def _backward(self, losses: list[torch.Tensor], scaler: torch.amp.GradScaler | None) -> None:
        separate = losses if self.recipe.separate_losses else [sum(losses[1:], losses[0])]
        for index, loss in enumerate(separate, start=1):
            self.sharding.backward(loss, last=index == len(separate))

    def accumulate(self, batch: Batch, items: int) -> float:
        self.sharding.begin()
        return self._record(batch, self._pass(batch, items, self.scaler))

    # the update

    def _gradients(self, window: Window, items: int) -> dict[str, Array]:
        former = self.open_gradients() if self.sharding.is_open else None
        if former is not None:  # end the open window, without its gradients
            for slot in self.slots.values():
                slot.tensor.grad = None
            self.sharding.end()
            self.sharding.discard()
        self._passes(window, items, None)
        result = {name: self.sharding.gradient(slot.tensor) for name, slot in self.slots.items()}
        self.sharding.discard()
        if former is not None:
            self.put_gradients(former)
        return {name: self.slots[name].to_canonical(value) for name, value in result.items() if value is not None}

    def _make_update(self, unscale_calls: int | None, inject: Gradients | None) -> Update:
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
            with self.sharding.gather_parameters():
                self.average.update_parameters(self.network)
        return self._report(before, rate, None if norm is None else float(norm), skipped=skipped)

    def _measure(self) -> None:
        self._gradient_bytes = sum(self.sharding.local_gradient_bytes(slot.tensor) for slot in self.slots.values())

    # readings

    def parameters(self) -> dict[str, Array]:
        with self.sharding.gather_parameters():
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

    def put_gradients(self, summed: Mapping[str, torch.Tensor]) -> None:
        """Opens a window with these summed gradients on this rank."""
        self.sharding.begin()
        with self.sharding.gather_parameters():
            super().put_gradients(summed)

    def _write(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        average = None if self.average is None else self.average.state_dict()
        self.sharding.engine.save_checkpoint(str(path), tag=_TAG, client_state={_AVERAGE: average})
        own = {
            "count": distributed.get_world_size(),
            LOOP: self.loop_state(),
            "open": self.sharding.is_open,
            "gradients": self.open_gradients(),
            "buffers": dict(self.network.named_buffers()),
        }
        torch.save(own, file_of_rank(path, distributed.get_rank()))

    def restore(self, path: Path) -> None:
        """Restores the files of `save` into a new engine; an additional rank takes the own part of rank 0.

        Raises:
            ValueError: on every rank, if a rank cannot read a file or DeepSpeed loads nothing from it.
        """
        fresh, refused = type(self)(self.mesh, self.model, self.recipe, None), f"{path} cannot be loaded"
        own = run_collectively(partial(_read, path), ValueError, refused)
        state = run_collectively(partial(fresh._load_engine, path), ValueError, refused)
        run_collectively(partial(fresh._go_on_from, path, own, state), ValueError, refused)
        vars(self).update(vars(fresh))

    def _load_engine(self, path: Path) -> dict[str, Any]:
        """The client state that the engine returns."""
        loaded, state = self.sharding.engine.load_checkpoint(str(path), tag=_TAG)
        if loaded is None:
            raise ValueError(f"DeepSpeed found no checkpoint in {path}")
        return dict(state)

    def _go_on_from(self, path: Path, own: dict[str, Any], state: dict[str, Any]) -> None:
        averages = [] if self.average is None else [_AVERAGE]
        same_parts(path, [name for name in (_AVERAGE,) if state[name] is not None], averages)
        if self.average is not None:
            self.average.load_state_dict(state[_AVERAGE])
        self.restore_loop_state(own[LOOP])
        self.put_buffers(own["buffers"])
        if own["open"]:
            self.put_gradients(own["gradients"])


def _read(path: Path) -> dict[str, Any]:
    """The own part of this rank, or of rank 0 if the checkpoint has fewer ranks."""
    rank = distributed.get_rank()
    first: dict[str, Any] = torch.load(file_of_rank(path, 0), weights_only=True)
    if rank == 0 or rank >= first["count"]:
        return first
    return torch.load(file_of_rank(path, rank), weights_only=True)


class DeepSpeedWorker(TorchWorker):
    """One rank's process, whose trainers are DeepSpeed's engines."""

    def __init__(self, rank: int, count: int, folder: Path, device: str, mode: str) -> None:
        super().__init__(rank, count, folder, device, mode)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count))
        deepspeed().init_distributed("gloo", auto_mpi_discovery=False, dist_init_required=False)

    def kind(self, ranks: Ranks) -> type[RankTrainer]:
        return EngineTrainer
