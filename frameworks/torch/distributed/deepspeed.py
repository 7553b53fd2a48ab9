"""DeepSpeed's engine for a network: configuration, windows, and state."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import distributed

from fixtures.recipe import DynamicScaling, Ranks, Recipe, StaticScaling
from frameworks.torch.core.network import Network
from frameworks.torch.distributed.rank_ways import OF_ZERO
from frameworks.torch.distributed.sharding import CountedReductions, Losses, WithLosses

_STAGES = {"replicated": 0, "optimizer": 1, "gradients": 2, "full": 3}
"""ZeRO's stages by what is sharded."""
_REDUCED = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_BUCKET = 2**20
"""Entries of the buffer through which gradients are reduced; DeepSpeed's default takes 2 GB a rank."""


@cache
def deepspeed() -> Any:
    """The module of DeepSpeed, with less logging."""
    module = import_module("deepspeed")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    return module


def config_of(recipe: Recipe, ranks: Ranks) -> dict[str, Any]:
    """DeepSpeed's configuration for a recipe of these ranks; the step that ends a window is the caller's to call.

    Small parameters are sharded as large ones are, and gradients are added up over ranks in the recipe's format.
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
    """The formats of a recipe; DeepSpeed scales losses in its float16 alone."""
    format_name, level = recipe.precision.format, recipe.precision.level
    given: dict[str, Any] = {}
    if level == "O1":
        given["torch_autocast"] = {"enabled": True, "dtype": format_name, "lower_precision_safe_modules": []}
    elif level == "O2" or (level == "O3" and (stage or format_name == "float16")):
        given[_REDUCED[format_name]] = {"enabled": True}
        # batch norm on a CPU takes low parameters with low statistics alone
        given["data_types"] = {"buffer_dtype": _REDUCED[format_name]}
        if level == "O3" and format_name == "bfloat16":
            given["bf16"] |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    match recipe.scaling:
        case StaticScaling(scale=scale):
            given["fp16"] = {"enabled": True, "loss_scale": scale}
        case DynamicScaling(enabled=True):
            given["fp16"] = {"enabled": True, "loss_scale": 0}
    return given


class Engine:
    """A network that DeepSpeed trains with an optimizer, on every rank.

    Attributes:
        engine: DeepSpeed's own.
        stage: ZeRO's.
        parameters: of the network; they keep their identity, and at stage 3 hold nothing between passes.
        shapes: of the parameters when they are whole.
    """

    def __init__(
        self,
        network: Network,
        losses: Losses,
        recipe: Recipe,
        ranks: Ranks,
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

    def outputs(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """The network's outputs by head."""
        return self.engine(inputs)

    def fed(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.engine(torch.empty(0), {}, gradients)[0]

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        """One backward pass, whether it is the last through its forward pass."""
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
        """Opens a window whose end is not known before `end`: gradients stay where they are until then."""
        if self.is_open:
            return
        self.is_open = True
        if self.stage:
            self._open.enter_context(self.engine.coalesce_grad_reduction())
        else:
            self.engine.set_gradient_accumulation_boundary(False)

    def end(self) -> None:
        """Reduces what an open window has summed; does nothing if none is open."""
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
        """Number of reduced gradients, from the total number of reduced entries."""
        entries, self._reduced.entries = self._reduced.entries, 0
        return round(entries / sum(map(math.prod, self.shapes.values()))) * len(self.parameters)

    # what is held

    def gathered(self, *, writing: bool = False) -> AbstractContextManager[None]:
        """Within the context, parameters are gathered; with `writing`, rank 0's changes are broadcast."""
        writer = 0 if writing else None
        return deepspeed().zero.GatheredParameters(self.parameters, modifier_rank=writer, enabled=self.stage == 3)

    def gradient(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """The gathered reduced gradient of a parameter; every rank must call this."""
        return self._whole(parameter, deepspeed().utils.safe_get_full_grad(parameter))

    def master(self, parameter: torch.Tensor) -> torch.Tensor:
        """The gathered master of a parameter; every rank must call this."""
        if not self.stage:
            return self.updated().get(parameter, parameter)
        result: torch.Tensor = deepspeed().utils.safe_get_full_fp32_param(parameter)
        return result.reshape(self.shapes[parameter])

    def updated(self) -> dict[torch.Tensor, torch.Tensor]:
        """At stage 0 the masters by parameter, where the optimizer updates any."""
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
            own += self._own_of(parameter, parameter.ds_tensor)
        return own * parameter.element_size()

    def local_gradient_bytes(self, parameter: torch.Tensor) -> int:
        """Bytes that this rank holds of a parameter's reduced gradient."""
        if self.stage == 3:
            part = deepspeed().utils.safe_get_local_grad(parameter)
            return self._own_of(parameter, part) * int(part.element_size())
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
            return sum(self._own_of(parameter, part) * part.element_size() for part in parts)
        self._link()
        mapping = parameter._hp_mapping
        if mapping is None:
            return 0
        parts = [mapping.get_hp_fragment(name) for name in (None, *names)]
        return sum(part.numel() * part.element_size() for part in parts)

    def _link(self) -> None:
        """At stages 1 and 2 has DeepSpeed find the moments of all groups; a step has it find those of the first."""
        optimizer = self.engine.optimizer
        if self.stage in (1, 2) and optimizer.optimizer.state:
            optimizer._hp_optimizer_states_linked = False
            optimizer._lazy_init_hp_params_optimizer_state()

    def _own_of(self, parameter: torch.Tensor, part: torch.Tensor) -> int:
        """Entries of this rank's part of a parameter at stage 3, whose last part is padded to the others' size."""
        before = part.numel() * distributed.get_rank()
        return max(0, min(part.numel(), math.prod(self.shapes[parameter]) - before))


def _forget_autocast() -> None:
    """Resets `torch_autocast`, whose format would otherwise apply to all later engines."""
    state = import_module("deepspeed.runtime.torch_autocast")
    vars(state).update(TORCH_AUTOCAST_INITIALIZED=False, TORCH_AUTOCAST_DTYPE=None)
