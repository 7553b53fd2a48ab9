"""PyTorch's operations and layers with the examples of `torch.testing`, and what techniques make of them."""

import copy
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from itertools import islice
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

from fixtures.arrays import Array
from frameworks.base.shipped import FACTOR, BaseShipped
from frameworks.contract import Part, Values
from frameworks.torch.core.arrays import to_array

Call = Callable[[Callable[..., Any], Sequence[Any]], Any]
Tensors = Sequence[torch.Tensor]

MISSING = "the examples of torch.testing want the package expecttest"
_SAMPLES = 2
_LOW = torch.bfloat16


@cache
def available() -> bool:
    """Whether the examples can be imported."""
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
    """Calls of the techniques that differ in the forward pass."""
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
    """What operations and layers share: the calls, and the gradients.

    Args:
        device: where the examples are.
        compiles: whether they are compiled too.
    """

    def __init__(self, device: str, *, compiles: bool) -> None:
        super().__init__()
        self.device = device
        self.compiles = compiles
        self._samples: dict[str, list[Any]] = {}
        # a short call stack: `torch.testing` reads the whole of it for each sample
        self._thread = ThreadPoolExecutor(1)

    def samples(self, name: str) -> list[Any]:
        """What PyTorch has as examples of a part, drawn once."""
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
        known = (*self.of_calls, *self.own)
        return tuple(technique for technique in known if self.compiles or technique != "compiled")

    own: tuple[str, ...] = ()
    of_calls = tuple(technique for technique in _calls("cpu") if technique != "in-scope")


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
    """The gradient of one input while the others have none; of outputs that do not depend on it there is none."""
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
    """Seeds the generator of a device; `torch.manual_seed` formats the call stack, which tests make a long one."""
    if device == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _incoming(output: torch.Tensor) -> torch.Tensor:
    """A gradient for an output: normal numbers, always the same."""
    stream = torch.Generator().manual_seed(7)
    return torch.randn(output.shape, generator=stream, dtype=output.dtype).to(output.device)


def _make_strided(dense: torch.Tensor) -> torch.Tensor:
    """The same numbers, every second one in memory."""
    return torch.stack([dense, torch.zeros_like(dense)], -1)[..., 0]


def _dense(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    return (value if value.layout == torch.strided else value.to_dense()).clone().resolve_conj()


def _again(value: Any) -> Any:
    """A new leaf with the same numbers, where the value is a tensor."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _leaves(nest: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(nest) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


@cache
def _operations() -> Mapping[str, Any]:
    with patch.object(torch.backends, "disable_global_flags"):
        from torch.testing._internal.common_methods_invocations import op_db

    usable = [info for info in op_db if info.supports_autograd and not info.name.startswith("sparse.")]
    return {_name(info.name, info.variant_test_name): info for info in usable}


def _elementwise() -> Mapping[int, Any]:
    """The classes of operations that take arrays element by element, by their number."""
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

    return {1: UnaryUfuncInfo, 2: BinaryUfuncInfo}


@cache
def _modules() -> Mapping[str, Any]:
    with patch.object(torch.backends, "disable_global_flags"):
        from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db if ".Lazy" not in info.name}


def _name(name: str, variant: str) -> str:
    return f"{name}.{variant}" if variant else name


class Operations(_Shipped):
    """Differentiable operations of `op_db` that take float32, two examples each."""

    own = ("one-input", "used-twice", "scaled", "strided")

    def names(self) -> tuple[str, ...]:
        kind = torch.device(self.device).type
        return tuple(name for name, info in _operations().items() if torch.float32 in info.supported_dtypes(kind))

    def draw_samples(self, name: str) -> Iterator[Any]:
        return iter(_operations()[name].sample_inputs(self.device, torch.float32, requires_grad=True))

    def examples(self, name: str, technique: str) -> Iterator[Example]:
        del technique
        operation = _operations()[name]
        for sample in self.samples(name):
            arguments, named = tree_map(_again, ((sample.input, *sample.args), dict(sample.kwargs)))
            yield Example(partial(_apply_operation, operation, sample, named), arguments, _leaves((arguments, named)))

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        operation: Any = _operations()[name]
        if not isinstance(operation, _elementwise()[len(points)]) or name == "nextafter":  # a step, with no slope
            raise TypeError(f"{name} is no function of {len(points)} arrays")
        leaves = [torch.tensor(point, device=self.device, requires_grad=True) for point in points]
        value: torch.Tensor = operation.op(*leaves)
        return to_array(value), *map(to_array, torch.autograd.grad(value, leaves, torch.ones_like(value)))


def _apply_operation(operation: Any, sample: Any, named: Mapping[str, Any], *args: Any) -> Any:
    result = operation(*args, **named)
    return sample.output_process_fn_grad(result) if sample.output_process_fn_grad else result


class Layers(_Shipped):
    """Modules of `module_db` in training, two examples each."""

    own = ("copied", "loaded", "saved-whole")

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
            arguments, named = tree_map(_again, (tuple(sample.forward_input.args), dict(sample.forward_input.kwargs)))
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
    """A module from another seed, with the saved state of this one."""
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
