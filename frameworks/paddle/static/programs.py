"""The programs of a run in static mode, the scope that they share, and their reductions over ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import paddle
from paddle import distributed
from paddle.utils import unique_name

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Ranks, Recipe
from frameworks.base.host import short_call_stacks
from frameworks.contract import Capability, Unsupported
from frameworks.paddle.core.layers import Network, add, hook_layers, item_losses, missing_kernel
from frameworks.paddle.core.settings import Stream, current, format_name, place
from frameworks.paddle.static import attempts
from frameworks.paddle.static.declarations import FROZEN_PRODUCTS, SCALED_FLOAT64, SEVERAL_OPTIMIZERS, acts
from frameworks.paddle.training.optimizers import Share, build_scaler, build_shares, read_settings, scope_for_a_scaler

MASTER = "_fp32_master_"
"""Suffix of a float32 master weight's name."""
Outputs = tuple[tuple[Any, ...], dict[str, str]]
"""The fetch list of a program, and the stored names of its parameters by canonical name."""
Pairs = list[tuple[Any, Any]]
"""Parameters with their gradients."""
_ALL_REDUCE = "pd_op.all_reduce_"
_LOW = ("float16", "bfloat16")


@dataclass(frozen=True)
class BuiltProgram:
    """A program, its fetch list, and the stored names of its parameters by canonical name."""

    program: Any
    fetches: tuple[Any, ...]
    parameters: dict[str, str]


class ProgramState:
    """A scope with an executor: the variables that several programs share by their generated names.

    Name generation starts afresh for every program, so that a parameter, slot or scale has the same name in all of
    them. A program's startup part runs in a separate scope, from which only new variables are copied.
    """

    def __init__(self) -> None:
        self.scope = paddle.static.Scope()
        self.executor = paddle.static.Executor(place())
        self.initial: dict[str, Array] = {}

    def build(self, make: Callable[[Any], Outputs]) -> BuiltProgram:
        """Builds a program with `make(startup)`."""
        main, startup = paddle.static.Program(), paddle.static.Program()
        with short_call_stacks(), unique_name.guard(), paddle.static.program_guard(main, startup):
            fetches, parameters = make(startup)
        fresh = paddle.static.Scope()
        with short_call_stacks(), paddle.static.scope_guard(fresh):
            self.executor.run(startup)
        for name in sorted(fresh.local_var_names(), key=len):
            tensor = fresh.find_var(name).get_tensor()
            if name not in self.initial and tensor._is_initialized():
                self._take_over(name, tensor)
        return BuiltProgram(main, fetches, parameters)

    def _take_over(self, name: str, tensor: Any) -> None:
        """Initializes a variable with its value from the startup program, a master weight with the run's parameter."""
        owner, master, _ = name.partition(MASTER)
        value = self.read(owner).astype(np.float32) if master else array_of(tensor)
        self.initial[name] = value
        _set(self.scope.var(name).get_tensor(), value)

    def run(self, built: BuiltProgram, feed: Mapping[str, Array]) -> list[Array]:
        """Runs the program once; returns the fetched arrays."""
        with short_call_stacks(), paddle.static.scope_guard(self.scope):
            fetched = self.executor.run(
                built.program, feed=dict(feed), fetch_list=list(built.fetches), return_numpy=False
            )
        return [array_of(tensor) for tensor in fetched]

    def read(self, name: str) -> Array:
        """A copy of a stored variable, in its true format."""
        return array_of(self.scope.find_var(name).get_tensor())

    def write(self, name: str, value: Array) -> None:
        """Sets a stored variable, in its format, in place."""
        _set(self.scope.find_var(name).get_tensor(), np.asarray(value).astype(self.initial[name].dtype))

    def snapshot(self) -> dict[str, Array]:
        """Copies of all stored variables."""
        return {name: self.read(name) for name in self.initial}

    def save(self, built: BuiltProgram, prefix: Path) -> None:
        """Writes the variables of a program with `paddle.static.save`."""
        with paddle.static.scope_guard(self.scope):
            paddle.static.save(built.program, str(prefix))

    def load(self, built: BuiltProgram, prefix: Path) -> None:
        """Sets the variables of a program with `paddle.static.load`."""
        with paddle.static.scope_guard(self.scope):
            paddle.static.load(built.program, str(prefix), self.executor)

    def load_in_two_steps(self, built: BuiltProgram, prefix: Path, later: Collection[str]) -> None:
        """Loads as `load` does, but in two steps: the variables named `later` in the second."""
        state = paddle.static.load_program_state(str(prefix))
        with paddle.static.scope_guard(self.scope):
            for is_later in (False, True):
                part = {name: value for name, value in state.items() if (name in later) is is_later}
                paddle.static.set_program_state(built.program, part)

    def take(self, built: BuiltProgram, other: ProgramState) -> None:
        """Sets the variables of a program to the present values of another scope."""
        built.program.set_state_dict(built.program.state_dict("all", other.scope), self.scope)


def array_of(tensor: Any) -> Array:
    """A copy of a variable's value; bfloat16, which Paddle returns as bits in uint16, has the dtype of ml_dtypes."""
    value = np.array(tensor)
    return value.view(ml_dtypes.bfloat16) if format_name(tensor._dtype()) in ("bfloat16", "bf16") else value


def _set(tensor: Any, value: Array) -> None:
    tensor.set(encode_for_executor(np.asarray(value, order="C")), place())


def encode_for_executor(array: Array) -> Array:
    """The array in the form that an executor accepts: bfloat16 as its bits in uint16."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


class Reduction:
    """Sums gradients over the ranks by `paddle.distributed.all_reduce`, those of low formats in float32.

    fleet's optimizer for this raises in programs of the new IR, and optimizers have no public hook between `backward`
    and `apply_gradients`, which `minimize` calls, so `backward` is replaced.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._count = ranks.count

    def reduce_in_updates(self, optimizer: Any, parameters: Sequence[Any], *, mean: bool) -> None:
        """Makes the optimizer's `minimize` use gradients summed, or averaged, over all ranks."""
        compute = optimizer.backward

        def backward(*args: Any, **kwargs: Any) -> Pairs:
            return self.sum_gradients(compute(*args, **kwargs), parameters, mean=mean)

        optimizer.backward = backward

    def sum_gradients(self, pairs: Pairs, parameters: Sequence[Any], *, mean: bool = False) -> Pairs:
        """These parameters with their gradients summed, or averaged, over the ranks; a missing one counts as zeros."""
        gradients = {parameter.name: gradient for parameter, gradient in pairs if gradient is not None}
        result = []
        for parameter in parameters:
            gradient = gradients[parameter.name] if parameter.name in gradients else _zeros(parameter)
            result.append((parameter, self._all_reduce(gradient, mean=mean)))
        return result

    def _all_reduce(self, gradient: Any, *, mean: bool) -> Any:
        if self._count == 1:
            return gradient
        low = format_name(gradient.dtype) in _LOW
        total = gradient.astype("float32") if low else paddle.assign(gradient)
        distributed.all_reduce(total)
        if mean:
            total = total / self._count
        return total.astype(gradient.dtype) if low else total


def _zeros(parameter: Any) -> Any:
    return paddle.zeros(list(parameter.shape), format_name(parameter.dtype))


def reduced_bytes(program: Any) -> tuple[int, ...]:
    """The size in bytes of every tensor that a program reduces over the ranks."""
    reduced = [op.results()[0] for op in program.global_block().ops if op.name() == _ALL_REDUCE]
    return tuple(int(np.prod(tensor.shape)) * np.dtype(format_name(tensor.dtype)).itemsize for tensor in reduced)


class Programs:
    """Builds each program once for each kind of batch.

    Args:
        reduction: reduction of gradients over the ranks; None without ranks.

    Attributes:
        store: the variables that the programs share.
        shares: the optimizers of the program built last, with their parameters by canonical name.
        settings: settings of the scaler, as read when a program with it was built.
        frozen: parameters that programs do not train, including those that the recipe freezes.
    """

    def __init__(self, model: Model, recipe: Recipe, reduction: Reduction | None = None) -> None:
        self.model, self.recipe = model, recipe
        self.frozen = frozenset(recipe.frozen)
        self._reduction = reduction
        self.stream, self.store = Stream(recipe.seed), ProgramState()
        self.heads = tuple(head.name for head in model.heads.heads)
        self.shares: list[Share] = []
        self.settings: dict[str, Any] = {}
        self._wide = [head.name for head in model.heads.heads if head.format == "float64"]
        self._built: dict[tuple[object, ...], BuiltProgram] = {}

    def evaluation(self) -> BuiltProgram:
        """The forward pass of all heads in evaluation mode; fetches the outputs."""

        def make(_: Any) -> Outputs:
            network = self._network(training=False)
            inputs = self._inputs()
            with self._precision():
                outputs = network(inputs, self.heads)
            return tuple(outputs.values()), _names(network)

        return self._get_program((Programs.evaluation,), make)

    def update(self, heads: tuple[str, ...], *, masked: bool, present: tuple[str, ...]) -> BuiltProgram:
        """A whole update on a batch that has targets for these heads; fetches the loss.

        Args:
            present: heads that have targets in at least one rank's batch.
        """

        def make(startup: Any) -> Outputs:
            network = self._network(training=True)
            loss = self._loss(network, heads, masked=masked)
            self._minimize(network, loss, startup, self._select_parameters(present))
            return (loss,), _names(network)

        return self._get_program((Programs.update, heads), make, masked=masked, present=present)

    def gradients(self, heads: tuple[str, ...], *, masked: bool, present: tuple[str, ...]) -> BuiltProgram:
        """The unscaled gradients of a batch; fetches one for each parameter of the built program, in its order."""

        def make(_: Any) -> Outputs:
            network = self._network(training=True)
            differentiated = paddle.static.append_backward(self._loss(network, heads, masked=masked))
            pairs = [(parameter, grad) for parameter, grad in differentiated if grad is not None]
            if self._reduction is not None:
                parameters = [network.named[name] for name in self._select_parameters(present)]
                pairs = self._reduction.sum_gradients(pairs, parameters)
            names = {value: name for name, value in _names(network).items()}
            return tuple(grad for _, grad in pairs), {names[p.name]: p.name for p, _ in pairs}

        return self._get_program((Programs.gradients, heads), make, masked=masked, present=present)

    def build_trace(self, heads: tuple[str, ...], *, masked: bool) -> BuiltProgram:
        """The program of `gradients` that also fetches the layers' outputs and their gradients.

        The keys of `parameters` name the fetched values: "parameter/NAME", "output/PATH" or "gradient/PATH". The stored
        names are empty.
        """

        def make(_: Any) -> Outputs:
            network = self._network(training=True)
            outputs: dict[str, Any] = {}

            def record(path: str) -> Callable[[Any, Any, Any], None]:
                return lambda _layer, _inputs, output: outputs.update({path: output})

            with hook_layers(network.layers_by_path, record):
                loss = self._loss(network, heads, masked=masked)
            targets = {f"parameter/{name}": parameter for name, parameter in network.named.items()}
            targets |= {f"gradient/{path}": outputs[path] for path in self.model.output_shapes() if path in outputs}
            gradients = paddle.static.gradients([loss], list(targets.values()))
            fetches = {f"output/{path}": value for path, value in outputs.items()}
            fetches |= {name: value for name, value in zip(targets, gradients, strict=True) if value is not None}
            return tuple(fetches.values()), dict.fromkeys(fetches, "")

        return self._get_program((Programs.build_trace, heads), make, masked=masked)

    def build_gradient_update(self, parameters: tuple[str, ...]) -> BuiltProgram:
        """An update from gradients of these parameters that are fed as "gradient.NAME"; fetches the loss."""

        def make(startup: Any) -> Outputs:
            network = self._network(training=True)
            terms = []
            with self._precision():
                for name in parameters:
                    p = network.named[name]
                    dtype = "float64" if format_name(p.dtype) == "float64" else "float32"
                    gradient = paddle.static.data(f"gradient.{name}", list(p.shape), dtype)
                    terms.append((p.astype(dtype) * gradient).sum())
            loss = add(terms) if terms else paddle.zeros([])
            self._minimize(network, loss, startup, self._drop_frozen(parameters), mean=True)
            return (loss,), _names(network)

        return self._get_program((Programs.build_gradient_update, parameters), make)

    def training(self) -> BuiltProgram:
        """The program with every variable of the run, also those of parameters in `frozen` that the recipe trains."""
        frozen, self.frozen = self.frozen, frozenset(self.recipe.frozen)
        try:
            return self.build_gradient_update(tuple(self.model.parameter_shapes()))
        finally:
            self.frozen = frozen

    def renew_schedules(self, schedulers: Iterable[Any]) -> None:
        """Builds programs again, with the same variables and other schedules."""
        self.training()
        for share, scheduler in zip(self.shares, schedulers, strict=True):
            share.scheduler = scheduler
        self._built.clear()
        self.training()

    def use_scaler(self) -> None:
        """Scales a loss of one, and drops the result."""
        if self.recipe.scaling is not None:
            scaler = build_scaler(self.recipe.scaling)

            def make(_: Any) -> Outputs:
                with self._precision():
                    return (scaler.scale(paddle.ones([1])),), {}

            with self.stream.with_fresh_names():
                self.store.run(self.store.build(make), {})

    def _drop_frozen(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in self.frozen]

    def _select_parameters(self, heads: tuple[str, ...]) -> list[str]:
        """The trained parameters, without those of heads that are not present."""
        last = len(self.model.layers) - 1
        absent = tuple(f"{last}.{head}." for head in self.heads if head not in heads)
        return self._drop_frozen(name for name in self.model.parameter_shapes() if not name.startswith(absent))

    def _get_program(self, kind: tuple[Any, ...], make: Callable[[Any], Outputs], **settings: Any) -> BuiltProgram:
        key = (*kind, *settings.values(), self.frozen)
        if key not in self._built:
            with self.stream.open():
                state = self.stream.state
                try:
                    self._built[key] = self.store.build(make)
                except (TypeError, RuntimeError) as error:
                    capability, reason = Capability.of(self.recipe.precision), missing_kernel(error)
                    if capability is None or reason is None:
                        raise
                    attempt = partial(_builds, self.model, self.recipe, kind, settings)
                    raise Unsupported(capability, reason, attempt) from error
                finally:
                    paddle.set_rng_state(state)
        return self._built[key]

    def _network(self, *, training: bool) -> Network:
        network = Network(self.model)
        network.train() if training else network.eval()
        is_low_on_cpu = self.recipe.precision.format == "bfloat16" and current() == "cpu"
        if is_low_on_cpu and any(name.endswith("weight") for name in self.frozen):
            attempt = partial(acts, current(), attempts.trains_next_to_constants)
            raise Unsupported(Capability.FROZEN, FROZEN_PRODUCTS, attempt)
        for name in self.frozen:
            network.named[name].stop_gradient = True
        return self._decorate(network, None)[0] if self._is_low() else network

    def _is_low(self) -> bool:
        return self.recipe.precision.level in ("O2", "O3")

    def _decorate(self, network: Network, optimizer: Any) -> tuple[Network, Any]:
        """The network and the optimizer by `amp.decorate`, which returns the network alone if there is no optimizer."""
        precision = self.recipe.precision
        arguments: dict[str, Any] = {"models": network, "optimizers": optimizer}
        if self._is_low():
            wide = [network.heads[name] for name in self._wide]
            masters = None if precision.level == "O2" else False
            arguments |= {"level": "O2", "dtype": precision.format, "master_weight": masters}
            decorated = paddle.amp.decorate(**arguments, excluded_layers=wide or None)
        else:
            dtype = "float16" if precision.level == "O0" else precision.format
            decorated = paddle.amp.decorate(**arguments, level="O1", dtype=dtype)
        return decorated if optimizer is not None else (decorated, None)

    def _precision(self) -> AbstractContextManager[None]:
        precision = self.recipe.precision
        if precision.level == "O0":
            return scope_for_a_scaler() if self.recipe.scaling else nullcontext()
        return paddle.amp.auto_cast(level="O1" if precision.level == "O1" else "O2", dtype=precision.format)

    def _inputs(self) -> Any:
        dtype = "int64" if self.model.integer_inputs else "float32"
        inputs = paddle.static.data("inputs", [None, *self.model.sample], dtype)
        if not self.model.integer_inputs:
            inputs.stop_gradient = False  # otherwise the backward pass of a bfloat16 matmul crashes the process
        return inputs

    def _loss(self, network: Network, heads: tuple[str, ...], *, masked: bool) -> Any:
        kinds = dict(self.model.losses)
        inputs = self._inputs()
        positions = list(self.model.sample) if self.model.token_level else []
        mask = paddle.static.data("mask", [None, *positions], "float32") if masked else None
        items = paddle.static.data("items", [], "float32")
        losses = []
        with self._precision():
            for name, output in network(inputs, heads).items():
                if kinds[name] == "cross_entropy":
                    target = paddle.static.data(f"target.{name}", [None, *positions], "int64")
                else:
                    dtype = "float64" if name in self._wide else "float32"
                    target = paddle.static.data(f"target.{name}", [None, output.shape[-1]], dtype)
                wide = output.astype("float32") if self._is_low() and name not in self._wide else output
                head_losses = item_losses(kinds[name], wide, target)
                total = (head_losses if mask is None else head_losses * mask).sum()
                losses.append(total / items.astype(total.dtype))
        return add(losses)

    def _minimize(
        self, network: Network, loss: Any, startup: Any, trained: Iterable[str], *, mean: bool = False
    ) -> None:
        recipe = self.recipe
        schedulers = [share.scheduler for share in self.shares]
        self.shares = build_shares(recipe, network.named, implicit=True, schedulers=schedulers)
        if recipe.clip is not None and len(self.shares) > 1:
            raise Unsupported(Capability.CLIP, SEVERAL_OPTIMIZERS, partial(acts, current(), attempts.clips_jointly))
        if self._reduction is not None:
            for share in self.shares:
                parameters = [network.named[name] for name in trained if name in share.names]
                self._reduction.reduce_in_updates(share.optimizer, parameters, mean=mean)
        if recipe.scaling is None:
            for share in self.shares:
                optimizer = self._decorate(network, share.optimizer)[1] if self._is_low() else share.optimizer
                optimizer.minimize(loss, startup_program=startup)
            return
        if self._wide:
            attempt = partial(acts, current(), attempts.scales_float64)
            raise Unsupported(Capability.FLOAT64_HEADS, SCALED_FLOAT64, attempt)
        scaler = build_scaler(recipe.scaling)
        scaled = scaler.scale(loss)
        self.settings = {"dynamic": scaler.is_use_dynamic_loss_scaling(), "enabled": scaler.is_enable()}
        self.settings |= read_settings(scaler)
        for share in self.shares:
            decorated = self._decorate(network, share.optimizer)[1]
            scaler.minimize(decorated, scaled, startup_program=startup)

    def begin(self, weights: Mapping[str, Array], stored: Callable[[Array], Array]) -> dict[str, str]:
        """Sets the initial weights of the run; returns the stored names of parameters and statistics."""
        names = self.evaluation().parameters
        for name, value in weights.items():
            self.store.write(names[name], stored(np.asarray(value)))
        return names


def _builds(model: Model, recipe: Recipe, kind: tuple[Any, ...], settings: Mapping[str, Any]) -> bool:
    """Returns whether the method of `Programs` at the start of `kind` can build its program."""
    method, *arguments = kind
    built: BuiltProgram = method(Programs(model, recipe), *arguments, **settings)
    return bool(built.fetches)


def _names(network: Network) -> dict[str, str]:
    statistics = {f"buffer/{name}": value.name for name, value in network.statistics.items()}
    return {name: parameter.name for name, parameter in network.named.items()} | statistics
