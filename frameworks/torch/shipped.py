"""Operations, layers, optimizers and control flow that PyTorch ships, with examples."""

import copy
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from itertools import islice
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

from fixtures.arrays import Array
from frameworks.base.shipped import (
    FACTOR,
    FROZEN,
    HALFWAY,
    BaseFunctions,
    BaseOptimizers,
    BaseShipped,
    Function,
    Options,
    gradients,
    incoming,
    infinite,
    square,
)
from frameworks.contract import Capability, Part, Unsupported, Values
from frameworks.torch.core.settings import to_array, to_tensor

Call = Callable[[Callable[..., Any], Sequence[Any]], Any]
Tensors = Sequence[torch.Tensor]
Parameters = list[torch.Tensor]

MISSING = "the examples of torch.testing want the package expecttest"
_SAMPLES = 2
_LOW = torch.bfloat16
_IMPLEMENTATIONS = ("single", "foreach", "fused")
_SCALE = 1024.0
_DERIVATIVES = ("own-backward", "jacobian", "hessian", "low-jacobian")
"""Techniques that take a derivative inside the function."""


@cache
def available() -> bool:
    """Returns whether the examples can be imported."""
    return find_spec("expecttest") is not None


@dataclass(frozen=True)
class Example:
    """A callable with its arguments and the tensors that gradients are taken of."""

    call: Callable[..., Any]
    arguments: Sequence[Any]
    leaves: Tensors
    state: Tensors = ()


def _without_gradient(call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    with torch.no_grad():
        return call(*arguments)


def _recompute_call(call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    return checkpoint(call, *arguments, use_reentrant=False)


def _copied_values(call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda saved: saved):
        return call(*arguments)


def _scope(device: str, enabled: bool, inner: Call, call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    with torch.autocast(device, _LOW, enabled=enabled):
        return inner(call, arguments)


def _compile_and_call(call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    torch.compiler.reset()
    return torch.compile(call, backend="aot_eager")(*arguments)


def _plain(call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    return call(*arguments)


def _calls(device: str) -> Mapping[str, Call]:
    """The forward call of each technique whose forward pass differs."""
    return {
        "without-gradient": _without_gradient,
        "recomputed": _recompute_call,
        "saved-elsewhere": _copied_values,
        "scope-off": partial(_scope, device, False, _plain),
        "in-scope": partial(_scope, device, True, _plain),
        "recomputed-in-scope": partial(_scope, device, True, _recompute_call),
        "compiled": _compile_and_call,
    }


class _Shipped(BaseShipped):
    """Base of operations and layers: their examples, calls and gradients.

    Args:
        device: device of the examples.
        compiles: the examples are compiled too.

    Attributes:
        own_techniques: techniques of this class alone, in addition to those of calls.
    """

    own_techniques: tuple[str, ...] = ()
    call_techniques = tuple(technique for technique in _calls("cpu") if technique != "in-scope")

    def __init__(self, device: str, *, compiles: bool) -> None:
        super().__init__()
        self.device = device
        self.compiles = compiles
        self._samples: dict[str, list[Any]] = {}
        # a thread has a short call stack, all of which `torch.testing` reads for each sample
        self._thread = ThreadPoolExecutor(1)

    def samples(self, name: str) -> list[Any]:
        """PyTorch's examples of a part, drawn once."""
        if name not in self._samples:
            _seed(self.device, 1)
            count = 1 if self.compiles else _SAMPLES
            self._samples[name] = self._thread.submit(lambda: list(islice(self.draw_samples(name), count))).result()
        return self._samples[name]

    def draw_samples(self, name: str) -> Iterator[Any]:
        """Examples as `torch.testing` draws them."""
        raise NotImplementedError

    def examples(self, name: str, technique: str) -> Iterator[Example]:
        """The examples of a part, made again for each call."""
        raise NotImplementedError

    def compute(self, name: str, technique: str) -> Values:
        call = _calls(self.device).get(technique, _plain)
        result: dict[str, Any] = {}
        for index, example in enumerate(self.examples(name, technique)):
            if example.leaves:
                for key, value in _values(example, call, technique, self.device).items():
                    result[f"{index}/{key}"] = None if value is None else to_array(value)
        return result

    def techniques(self) -> tuple[str, ...]:
        known = (*self.call_techniques, *self.own_techniques)
        return tuple(technique for technique in known if self.compiles or technique != "compiled")


def _values(example: Example, call: Call, technique: str, device: str) -> dict[str, torch.Tensor | None]:
    _seed(device, 3)
    outputs = _outputs(call(example.call, example.arguments))
    values: dict[str, torch.Tensor | None] = {f"value/{i}": _dense(output) for i, output in enumerate(outputs)}
    followed = [output for output in outputs if output.requires_grad]
    if followed and technique != "without-gradient":
        gradients = _gradients(example, followed, technique, device)
        values |= {f"gradient/{i}": None if g is None else _dense(g) for i, g in enumerate(gradients)}
    if not technique.startswith("recomputed"):
        values |= {f"state/{i}": tensor.clone() for i, tensor in enumerate(example.state)}
    return values


def _gradients(example: Example, outputs: Tensors, technique: str, device: str) -> Sequence[torch.Tensor | None]:
    leaves = example.leaves
    incoming = [_incoming(output) for output in outputs]
    backward = partial(torch.autograd.grad, outputs, allow_unused=True)
    match technique:
        case "one-input" if len(leaves) > 1:
            return [_of_one(example, index, device) for index in range(len(leaves))]
        case "used-twice":
            backward(leaves, incoming, retain_graph=True)
            return backward(leaves, incoming)
        case "scaled":
            scaled = backward(leaves, [gradient * FACTOR for gradient in incoming])
            return [None if gradient is None else gradient / FACTOR for gradient in scaled]
        case "strided":
            return backward(leaves, [_make_strided(gradient) for gradient in incoming])
    return backward(leaves, incoming)


def _of_one(example: Example, index: int, device: str) -> torch.Tensor | None:
    """The gradient of one input while no other needs one; None if no output depends on it."""
    wanted = example.leaves[index]
    for leaf in example.leaves:
        leaf.requires_grad_(leaf is wanted)
    _seed(device, 3)
    followed = [output for output in _outputs(example.call(*example.arguments)) if output.requires_grad]
    gradient = None
    if followed:
        gradient = torch.autograd.grad(
            followed, [wanted], [_incoming(output) for output in followed], allow_unused=True
        )[0]
    for leaf in example.leaves:
        leaf.requires_grad_(True)
    return gradient


def _outputs(result: Any) -> list[torch.Tensor]:
    """The floating-point and complex tensors of a result."""
    tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]


def _seed(device: str, seed: int) -> None:
    """Seeds the generator of a device; `torch.manual_seed` is slow: it formats the long call stack of tests."""
    if device == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _incoming(output: torch.Tensor) -> torch.Tensor:
    """A gradient for an output: normal numbers from a fixed seed."""
    stream = torch.Generator().manual_seed(7)
    return torch.randn(output.shape, generator=stream, dtype=output.dtype).to(output.device)


def _make_strided(dense: torch.Tensor) -> torch.Tensor:
    """The same numbers at every second position in memory."""
    return torch.stack([dense, torch.zeros_like(dense)], -1)[..., 0]


def _dense(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    return (value if value.layout == torch.strided else value.to_dense()).clone().resolve_conj()


def _copy_leaf(value: Any) -> Any:
    """A new leaf with the same numbers, where the value is a tensor."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _leaves(nest: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(nest) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def _import_database(module: str, name: str) -> Any:
    """A database of `torch.testing`; its import would freeze the global flags."""
    with patch.object(torch.backends, "disable_global_flags"):
        return getattr(import_module(f"torch.testing._internal.{module}"), name)


@cache
def _operations() -> Mapping[str, Any]:
    op_db = _import_database("common_methods_invocations", "op_db")
    usable = [info for info in op_db if info.supports_autograd and not info.name.startswith("sparse.")]
    return {f"{info.name}.{info.variant_test_name}".removesuffix("."): info for info in usable}


@cache
def _modules() -> Mapping[str, Any]:
    module_db = _import_database("common_modules", "module_db")
    return {info.name: info for info in module_db if ".Lazy" not in info.name}


class Operations(_Shipped):
    """Differentiable operations of `op_db` that take float32, two examples each."""

    own_techniques = ("one-input", "used-twice", "scaled", "strided")

    def names(self) -> tuple[str, ...]:
        kind = torch.device(self.device).type
        return tuple(name for name, info in _operations().items() if torch.float32 in info.supported_dtypes(kind))

    def draw_samples(self, name: str) -> Iterator[Any]:
        return iter(_operations()[name].sample_inputs(self.device, torch.float32, requires_grad=True))

    def examples(self, name: str, technique: str) -> Iterator[Example]:
        del technique
        operation = _operations()[name]
        for sample in self.samples(name):
            arguments, named = tree_map(_copy_leaf, ((sample.input, *sample.args), dict(sample.kwargs)))
            yield Example(partial(_apply_operation, operation, sample, named), arguments, _leaves((arguments, named)))

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

        operation: Any = _operations()[name]
        kind = {1: UnaryUfuncInfo, 2: BinaryUfuncInfo}[len(points)]
        if not isinstance(operation, kind) or name == "nextafter":  # a step, with no slope
            raise TypeError(f"{name} is no function of {len(points)} arrays")
        leaves = [torch.tensor(point, device=self.device, requires_grad=True) for point in points]
        value: torch.Tensor = operation.op(*leaves)
        return to_array(value), *map(to_array, torch.autograd.grad(value, leaves, torch.ones_like(value)))


def _apply_operation(operation: Any, sample: Any, named: Mapping[str, Any], *args: Any) -> Any:
    result = operation(*args, **named)
    return sample.output_process_fn_grad(result) if sample.output_process_fn_grad else result


class Layers(_Shipped):
    """Modules of `module_db` in training, two examples each."""

    own_techniques = ("copied", "loaded", "saved-whole")

    def names(self) -> tuple[str, ...]:
        return tuple(_modules())

    def draw_samples(self, name: str) -> Iterator[Any]:
        info = _modules()[name]
        return iter(info.module_inputs_func(info, self.device, torch.float32, requires_grad=True, training=True))

    def examples(self, name: str, technique: str) -> Iterator[Example]:
        info = _modules()[name]
        for sample in self.samples(name):
            build = partial(_build_module, info, sample, self.device)
            module = build(2)
            if technique in _TRANSFORMED:
                module = _TRANSFORMED[technique](module, build)
            arguments, named = tree_map(
                _copy_leaf, (tuple(sample.forward_input.args), dict(sample.forward_input.kwargs))
            )
            trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
            leaves = [*_leaves((arguments, named)), *trained]
            yield Example(partial(_call_module, module, named), arguments, leaves, tuple(module.buffers()))


def _call_module(module: torch.nn.Module, named: Mapping[str, Any], *args: Any) -> Any:
    return module(*args, **named)


def _build_module(info: Any, sample: Any, device: str, seed: int) -> torch.nn.Module:
    _seed(device, seed)
    module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
    return module.to(device).train()


Build = Callable[[int], torch.nn.Module]


def _save_and_load(module: torch.nn.Module, build: Build) -> torch.nn.Module:
    """A module created under another seed, with the saved state of this one."""
    other = build(5)
    other.load_state_dict(torch.load(_file_of(module.state_dict())))
    return other


def _file_of(content: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return file


_TRANSFORMED: Mapping[str, Callable[[torch.nn.Module, Build], torch.nn.Module]] = {
    "copied": lambda module, _: copy.deepcopy(module),
    "loaded": _save_and_load,
    "saved-whole": lambda module, _: torch.load(_file_of(module), weights_only=False),
}


PARTS: Mapping[Part, type[Operations | Layers]] = {"operations": Operations, "layers": Layers}


@cache
def _infos() -> Mapping[str, Any]:
    optim_db = _import_database("common_optimizers", "optim_db")
    return {info.optim_cls.__name__: info for info in optim_db}


class TorchOptimizers(BaseOptimizers):
    """Optimizers of `optim_db`, with each of its sets of options.

    Args:
        device: device of the parameters.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def names(self) -> tuple[str, ...]:
        return tuple(_infos())

    def techniques(self) -> tuple[str, ...]:
        own = ("loaded", "copied", "grouped", "reordered", "beside-frozen", "strided", "closure", "scaled")
        return (*own, *_IMPLEMENTATIONS)

    def options(self, name: str, technique: str) -> Sequence[Options]:
        del technique
        return [case.kwargs for case in _infos()[name].optim_inputs_func(device=self.device)]

    def get_options_without_decay(self, name: str) -> Options:
        taken = signature(_infos()[name].optim_cls).parameters
        return {decay: 0.0 for decay in ("weight_decay", "lambd") if decay in taken}

    def matrices_only(self, name: str) -> bool:
        return name == "Muon"

    def train(self, name: str, options: Options, technique: str, start: Sequence[Array]) -> Sequence[Array]:
        info = _infos()[name]
        if technique in _IMPLEMENTATIONS:
            options = {**options, **_implementation(info, options, technique)}
        if technique == "scaled" and info.step_requires_closure:
            raise Unsupported(Capability.SHIPPED_OPTIMIZERS, "GradScaler.step takes no closure")
        parameters = [_parameter(array, self.device, strided=technique == "strided") for array in start]
        optimizer = _make_optimizer(info, parameters, options, technique)
        scaler = torch.amp.GradScaler(torch.device(self.device).type, init_scale=_SCALE, enabled=technique == "scaled")
        scaler.scale(torch.ones((), device=self.device))

        def step(update: Sequence[Array]) -> None:
            def closure() -> torch.Tensor:
                loss = torch.zeros((), device=self.device)
                for parameter, value in zip(parameters, update, strict=True):
                    gradient = to_tensor(value, self.device) * scaler.get_scale()
                    parameter.grad = gradient.to_sparse() if info.only_supports_sparse_grads else gradient
                    loss += (gradient * parameter.detach()).sum()
                return loss

            if technique == "closure" or info.step_requires_closure:
                optimizer.step(closure)
                return
            closure()
            scaler.step(optimizer)
            scaler.update()

        for number, update in enumerate(gradients(start, technique)):
            if number == HALFWAY:
                match technique:
                    case "loaded":
                        parameters, optimizer = _reload_optimizer(info, parameters, optimizer, options)
                    case "copied":
                        parameters, optimizer = copy.deepcopy((parameters, optimizer))
                    case "scaled":
                        step(infinite(start))
            step(update)
        return [to_array(parameter.detach()) for parameter in parameters]


def _implementation(info: Any, options: Options, technique: str) -> Mapping[str, bool]:
    if technique == "single":
        return {"foreach": False} if "foreach" in info.supported_impls else {}
    if technique not in info.supported_impls or (technique == "foreach" and torch.is_tensor(options.get("lr"))):
        raise Unsupported(Capability.SHIPPED_OPTIMIZERS, f"{info.optim_cls.__name__} has no {technique} implementation")
    return {technique: True}


def _parameter(value: Array, device: str, *, strided: bool) -> torch.Tensor:
    """A leaf with these numbers, in the memory order of its transpose if `strided`."""
    tensor = to_tensor(value.T, device).T if strided else to_tensor(value, device)
    return tensor.detach().requires_grad_()


def _make_optimizer(info: Any, parameters: Parameters, options: Options, technique: str) -> torch.optim.Optimizer:
    trained: list[Any] = list(parameters)
    match technique:
        case "grouped" if not info.step_requires_closure:
            trained = [{"params": [parameter]} for parameter in parameters]
        case "reordered":
            trained = parameters[::-1]
        case "beside-frozen":
            trained.insert(1, torch.ones(FROZEN, device=parameters[0].device))
    make: Callable[..., torch.optim.Optimizer] = info.optim_cls
    return make(trained, **options)


def _reload_optimizer(
    info: Any, parameters: Parameters, optimizer: torch.optim.Optimizer, options: Options
) -> tuple[Parameters, torch.optim.Optimizer]:
    """New parameters with the values of these, and a new optimizer with the saved state of this one."""
    state = {"parameters": [tensor.detach() for tensor in parameters], "optimizer": optimizer.state_dict()}
    saved = torch.load(_file_of(state))
    others = [parameter.requires_grad_() for parameter in saved["parameters"]]
    other = _make_optimizer(info, others, options, "")
    other.load_state_dict(saved["optimizer"])
    return others, other


class _SineWithHalf(torch.autograd.Function):
    """A sine with a wrong backward pass, the constant 0.5, so that it differs from the derivative of the forward."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del ctx
        return gradients[0] * 0.5


def _in_place(x: Tensor) -> Any:
    y = x.clone()
    y.add_(1.0).mul_(x)
    y[0] = 2.0 * y[1]
    return y


def _views(x: Tensor) -> Any:
    base = x * 2.0
    flat, row, diagonal = base.reshape(-1), base[1], base.diagonal()
    base[1, 1] = 9.0
    return flat * x.sum(), row + 1.0, diagonal.sum()


def _scatter_rows(x: Tensor) -> Any:
    places = torch.tensor([[0, 2, 1, 3], [3, 3, 0, 0], [1, 0, 2, 2], [2, 1, 1, 0]], device=x.device)
    return torch.zeros_like(x).scatter_add_(1, places, x * x)


def _fill_columns(x: Tensor) -> Any:
    out = torch.empty_like(x)
    for column in range(x.shape[1]):
        out[:, column] = x[:, : column + 1].prod(1)
    return out


def _branch(x: Tensor) -> Any:
    return x.exp() if x.sum() > 0 else x.sin()


def _loop(x: Tensor) -> Any:
    steps = 0
    while x.norm() < 40.0:
        x, steps = x * 1.5, steps + 1
    return x * steps


def _where_branches(x: Tensor) -> Any:
    y = torch.where(x > x.mean(1, keepdim=True), x.sin(), x.cos())
    return y * torch.linspace(0.25, 1.25, y.numel(), device=x.device).reshape_as(y)


def _own_backward(x: Tensor) -> Any:
    return _SineWithHalf.apply(x), torch.func.grad(lambda y: _SineWithHalf.apply(y).sum())(x)


def _jacobian(x: Tensor) -> Any:
    return torch.func.jacfwd(lambda y: (y @ y).prod(0))(x)


def _hessian(x: Tensor) -> Any:
    return torch.func.hessian(lambda y: (y * y.sin()).sum().tanh())(x[0])


def _low_jacobian(x: Tensor) -> Any:
    def sums(y: Tensor) -> Tensor:
        return torch.sum(torch.mm(torch.mm(torch.prod(y) + y, torch.sum(y) + y), torch.sum(y) + y))

    return torch.func.jacfwd(sums)(x[:3, :3].half() / 2.0).float()


def _containers(x: Tensor) -> Any:
    return {"a": x * 2.0, "b": [x.sum(), (x - 1.0,)]}


def _aliases(x: Tensor) -> Any:
    y = x * 3.0
    return y, y, y.t()


def _stop_gradient(x: Tensor) -> Any:
    with torch.no_grad():
        deviation = x.std()
    return x / deviation * x.detach()


def _determinant(x: Tensor) -> Any:
    return tuple(torch.linalg.slogdet(x + 3.0 * torch.eye(4, device=x.device)))


def _sort_rows(x: Tensor) -> Any:
    values, places = x.sort(1)
    return values.cumsum(1).flip(0), x.gather(1, places[:, :2]), x.topk(2).values


def _use_shape(x: Tensor) -> Any:
    return x.sum(0) / x.shape[0], x.new_full((x.shape[0],), 2.0) * x[:, 0]


def _low(x: Tensor) -> Any:
    with torch.autocast(x.device.type, torch.bfloat16):
        y = x @ x
    return y.float() * (x.half() * x.half()).float()


def _resize_images(x: Tensor) -> Any:
    image = x.reshape(-1, 1, 2, 2)
    low = functional.interpolate(image.half().tanh(), (5, 3), mode="bilinear")
    return low.float(), *(functional.interpolate(image, (5, 3), mode=mode) for mode in ("nearest", "area"))


def _catch_error(x: Tensor) -> Any:
    try:
        if x.shape[1] == 4:
            raise ValueError("four columns")
    except ValueError:
        return x * 2.0
    return x


_FUNCTIONS: Mapping[str, Function] = {
    "in-place": _in_place,
    "views": _views,
    "scattered": _scatter_rows,
    "filled": _fill_columns,
    "branch": _branch,
    "loop": _loop,
    "chosen": _where_branches,
    "own-backward": _own_backward,
    "jacobian": _jacobian,
    "hessian": _hessian,
    "low-jacobian": _low_jacobian,
    "containers": _containers,
    "aliases": _aliases,
    "stopped": _stop_gradient,
    "determinant": _determinant,
    "ordered": _sort_rows,
    "sized": _use_shape,
    "low": _low,
    "resized": _resize_images,
    "caught": _catch_error,
}


class TorchFunctions(BaseFunctions):
    """Functions compiled by the backend "aot_eager", or by the default backend and in more ways.

    Args:
        device: device of the input.
        compiles: the backend is the default one.
    """

    functions = _FUNCTIONS

    def __init__(self, device: str, *, compiles: bool) -> None:
        super().__init__()
        self.device = device
        self._backend = "inductor" if compiles else "aot_eager"

    def techniques(self) -> tuple[str, ...]:
        more = ("compiled-inside", "unknown-batch") if self._backend == "inductor" else ()
        return ("compiled", *more, "recomputed", "recomputed-compiled")

    def compute(self, name: str, technique: str) -> Values:
        if technique.startswith("recomputed") and name in _DERIVATIVES:
            raise Unsupported(Capability.CONTROL_FLOW, "torch.func refuses the saved-tensor hooks of a checkpoint")
        torch.compiler.reset()
        x = torch.tensor(square(), device=self.device, requires_grad=True)
        outputs = tree_leaves(self._apply_technique(self.functions[name], technique)(x))
        values: dict[str, Any] = {f"value/{index}": to_array(output) for index, output in enumerate(outputs)}
        followed = [output for output in outputs if output.requires_grad]
        if followed:
            output_gradients = [torch.tensor(incoming(tuple(output.shape)), device=self.device) for output in followed]
            torch.autograd.backward(followed, output_gradients)
            values["gradient/0"] = None if x.grad is None else to_array(x.grad)
        return values

    def _apply_technique(self, function: Function, technique: str) -> Function:
        match technique:
            case "compiled":
                return self._compile(function)
            case "compiled-inside":
                inner = self._compile(function)
                return self._compile(lambda x: inner(x))
            case "unknown-batch":
                return self._compile(function, dynamic=True)
            case "recomputed":
                return lambda x: checkpoint(function, x, use_reentrant=False)
            case "recomputed-compiled":
                return self._compile(lambda x: checkpoint(function, x, use_reentrant=False))
        return function

    def _compile(self, function: Function, *, dynamic: bool | None = None) -> Function:
        return torch.compile(function, backend=self._backend, dynamic=dynamic)
