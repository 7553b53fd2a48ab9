"""The programs of a static-mode run: evaluation, update, gradients, and updates from given gradients."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import paddle

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.contract import Capability, Unsupported
from frameworks.paddle.core.arrays import format_name
from frameworks.paddle.core.devices import current
from frameworks.paddle.core.losses import add, item_losses
from frameworks.paddle.core.network import Network
from frameworks.paddle.core.operations import missing_kernel
from frameworks.paddle.core.streams import Stream
from frameworks.paddle.core.trace import hooked
from frameworks.paddle.static.attempts import training as attempts
from frameworks.paddle.static.declarations import FROZEN_PRODUCTS, SCALED_FLOAT64, SEVERAL_OPTIMIZERS
from frameworks.paddle.static.probes import acts
from frameworks.paddle.static.programs import BuiltProgram, ProgramState
from frameworks.paddle.static.reduction import Reduction
from frameworks.paddle.training.optimizers import Share, build_shares
from frameworks.paddle.training.scaler import build_scaler, read_settings, scope_for_a_scaler

Outputs = tuple[tuple[Any, ...], dict[str, str]]


class Programs:
    """Builds each program once, for each kind of batch.

    Args:
        reduction: of gradients over the ranks of which this process is one; None without ranks.

    Attributes:
        store: the variables that the programs share.
        shares: the run's optimizers with the parameters, by canonical name, that they update, as last built.
        settings: of the scaler, as read back when a program was built with it.
        frozen: parameters that programs do not train; those of the recipe and others.
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
        """The forward of all heads in evaluation mode."""

        def make(_: Any) -> Outputs:
            network = self._network(training=False)
            inputs = self._inputs()
            with self._precision():
                outputs = network(inputs, self.heads)
            return tuple(outputs.values()), _names(network)

        return self._cached(("evaluation",), make)

    def update(self, heads: tuple[str, ...], *, masked: bool, present: tuple[str, ...]) -> BuiltProgram:
        """A whole update on a batch that has targets for these heads; fetches the loss.

        Args:
            present: heads that any rank's batch has targets for.
        """

        def make(startup: Any) -> Outputs:
            network = self._network(training=True)
            loss = self._loss(network, heads, masked=masked)
            self._minimize(network, loss, startup, self._reached(present))
            return (loss,), _names(network)

        return self._cached(("update", heads), make, masked=masked, present=present)

    def gradients(self, heads: tuple[str, ...], *, masked: bool, present: tuple[str, ...]) -> BuiltProgram:
        """The unscaled gradients of a batch; fetches one for each parameter of the built program, in its order."""

        def make(_: Any) -> Outputs:
            network = self._network(training=True)
            differentiated = paddle.static.append_backward(self._loss(network, heads, masked=masked))
            pairs = [(parameter, grad) for parameter, grad in differentiated if grad is not None]
            if self._reduction is not None:
                pairs = self._reduction.sums(pairs, [network.named[name] for name in self._reached(present)])
            names = {value: name for name, value in _names(network).items()}
            return tuple(grad for _, grad in pairs), {names[p.name]: p.name for p, _ in pairs}

        return self._cached(("gradients", heads), make, masked=masked, present=present)

    def traced(self, heads: tuple[str, ...], *, masked: bool) -> BuiltProgram:
        """The program of `gradients` that also fetches the layers' outputs and their gradients.

        The keys of `parameters` say what is fetched, "parameter/NAME", "output/PATH" or "gradient/PATH"; stored names,
        which only parameters have, are left out.
        """

        def make(_: Any) -> Outputs:
            network = self._network(training=True)
            outputs: dict[str, Any] = {}

            def record(path: str) -> Callable[[Any, Any, Any], None]:
                return lambda _layer, _inputs, output: outputs.update({path: output})

            with hooked(network.layers_by_path, record):
                loss = self._loss(network, heads, masked=masked)
            targets = {f"parameter/{name}": parameter for name, parameter in network.named.items()}
            targets |= {f"gradient/{path}": outputs[path] for path in self.model.output_shapes() if path in outputs}
            gradients = paddle.static.gradients([loss], list(targets.values()))
            fetches = {f"output/{path}": value for path, value in outputs.items()}
            fetches |= {name: value for name, value in zip(targets, gradients, strict=True) if value is not None}
            return tuple(fetches.values()), dict.fromkeys(fetches, "")

        return self._cached(("traced", heads), make, masked=masked)

    def fed(self, parameters: tuple[str, ...]) -> BuiltProgram:
        """An update from given gradients of these parameters."""

        def make(startup: Any) -> Outputs:
            network = self._network(training=True)
            terms = []
            with self._precision():
                for name in parameters:
                    p = network.named[name]
                    kind = "float64" if format_name(p.dtype) == "float64" else "float32"
                    given = paddle.static.data(f"gradient.{name}", list(p.shape), kind)
                    terms.append((p.astype(kind) * given).sum())
            loss = add(terms) if terms else paddle.zeros([])
            self._minimize(network, loss, startup, self._trained(parameters), mean=True)
            return (loss,), _names(network)

        return self._cached(("fed", parameters), make)

    def training(self) -> BuiltProgram:
        """The program that holds every variable of the run, also of parameters that are frozen for a while."""
        frozen, self.frozen = self.frozen, frozenset(self.recipe.frozen)
        try:
            return self.fed(tuple(self.model.parameter_shapes()))
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
        """Scales a loss that nothing is done with."""
        if self.recipe.scaling is not None:
            scaler = build_scaler(self.recipe.scaling)

            def make(_: Any) -> Outputs:
                with self._precision():
                    return (scaler.scale(paddle.ones([1])),), {}

            with self.stream.apart():
                self.store.run(self.store.build(make), {})

    def _trained(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in self.frozen]

    def _reached(self, heads: tuple[str, ...]) -> list[str]:
        """The trained parameters but those of the other heads."""
        place = len(self.model.layers) - 1
        left_out = tuple(f"{place}.{head}." for head in self.heads if head not in heads)
        return self._trained(name for name in self.model.parameter_shapes() if not name.startswith(left_out))

    def _cached(self, kind: tuple[Any, ...], make: Callable[[Any], Outputs], **settings: Any) -> BuiltProgram:
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
        dies = self.recipe.precision.format == "bfloat16" and current() == "cpu"
        if dies and any(name.endswith("weight") for name in self.frozen):
            raise Unsupported(
                Capability.FROZEN, FROZEN_PRODUCTS, partial(acts, current(), attempts.trains_next_to_constants)
            )
        for name in self.frozen:
            network.named[name].stop_gradient = True
        return self._decorated(network, None)[0] if self._low() else network

    def _low(self) -> bool:
        return self.recipe.precision.level in ("O2", "O3")

    def _decorated(self, network: Network, optimizer: Any) -> tuple[Network, Any]:
        """The network and an optimizer by `amp.decorate`, which gives the network alone where there is no optimizer."""
        precision = self.recipe.precision
        given: dict[str, Any] = {"models": network, "optimizers": optimizer}
        if self._low():
            wide = [network.heads[name] for name in self._wide]
            masters = None if precision.level == "O2" else False
            given |= {"level": "O2", "dtype": precision.format, "master_weight": masters}
            decorated = paddle.amp.decorate(**given, excluded_layers=wide or None)
        else:
            dtype = "float16" if precision.level == "O0" else precision.format
            decorated = paddle.amp.decorate(**given, level="O1", dtype=dtype)
        return decorated if optimizer is not None else (decorated, None)

    def _precision(self) -> AbstractContextManager[None]:
        precision = self.recipe.precision
        if precision.level == "O0":
            return scope_for_a_scaler() if self.recipe.scaling else nullcontext()
        return paddle.amp.auto_cast(level="O1" if precision.level == "O1" else "O2", dtype=precision.format)

    def _inputs(self) -> Any:
        kind = "int64" if self.model.integer_inputs else "float32"
        inputs = paddle.static.data("inputs", [None, *self.model.sample], kind)
        if not self.model.integer_inputs:
            inputs.stop_gradient = False  # without it the backward of a bfloat16 matmul crashes the process
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
                    kind = "float64" if name in self._wide else "float32"
                    target = paddle.static.data(f"target.{name}", [None, output.shape[-1]], kind)
                wide = output.astype("float32") if self._low() and name not in self._wide else output
                each = item_losses(kinds[name], wide, target)
                total = (each if mask is None else each * mask).sum()
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
                own = [network.named[name] for name in trained if name in share.names]
                self._reduction.in_updates(share.optimizer, own, mean=mean)
        if recipe.scaling is None:
            for share in self.shares:
                optimizer = self._decorated(network, share.optimizer)[1] if self._low() else share.optimizer
                optimizer.minimize(loss, startup_program=startup)
            return
        if self._wide:
            raise Unsupported(
                Capability.FLOAT64_HEADS, SCALED_FLOAT64, partial(acts, current(), attempts.scales_float64)
            )
        scaler = build_scaler(recipe.scaling)
        scaled = scaler.scale(loss)
        self.settings = {"dynamic": scaler.is_use_dynamic_loss_scaling(), "enabled": scaler.is_enable()}
        self.settings |= read_settings(scaler)
        for share in self.shares:
            decorated = self._decorated(network, share.optimizer)[1]
            scaler.minimize(decorated, scaled, startup_program=startup)

    def begin(self, weights: Mapping[str, Array], stored: Callable[[Array], Array]) -> dict[str, str]:
        """Sets the weights that the run starts from; the stored names of parameters and statistics."""
        names = self.evaluation().parameters
        for name, value in weights.items():
            self.store.write(names[name], stored(np.asarray(value)))
        return names


def _builds(model: Model, recipe: Recipe, kind: tuple[Any, ...], settings: Mapping[str, Any]) -> bool:
    """Whether the method of `Programs` that `kind` begins with builds its program."""
    method, *arguments = kind
    built: BuiltProgram = getattr(Programs(model, recipe), method)(*arguments, **settings)
    return bool(built.fetches)


def _names(network: Network) -> dict[str, str]:
    statistics = {f"buffer/{name}": value.name for name, value in network.statistics.items()}
    return {name: parameter.name for name, parameter in network.named.items()} | statistics
