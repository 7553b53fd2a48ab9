"""TensorFlow Lite model files: dense layers and norms of a model, and files with a single layer."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.layers import Dense, LayerNorm
from fixtures.model import Model
from frameworks.contract import CodeRange

_DENSE = "FULLY_CONNECTED"


@cache
def _schema() -> Any:
    """Schema classes of a model file; missing in TensorFlow without Lite."""
    return import_module("tensorflow.lite.python.schema_py_generated")


@cache
def _flatbuffers() -> Any:
    return import_module("tensorflow.lite.tools.flatbuffer_utils")


def _code(operation: str) -> int:
    return int(getattr(_schema().BuiltinOperator, operation))


def other_operations() -> list[str]:
    """The names of all operations but that of dense layers."""
    return [name for name in vars(_schema().BuiltinOperator) if name.isupper() and name != _DENSE]


@dataclass(frozen=True)
class DenseOperation:
    """The operation of one dense layer, and its tensors in the file; the bias may be None."""

    operator: Any
    inputs: Any
    weight: Any
    bias: Any
    outputs: Any

    @property
    def has_codes(self) -> bool:
        """Whether it multiplies integers."""
        return bool(self.weight.type == _schema().TensorType.INT8)

    @property
    def is_static(self) -> bool:
        """Whether its inputs and outputs are integers in the file, by ranges that are there."""
        return bool(self.inputs.type == _schema().TensorType.INT8)


class _Builder:
    """A new model file of tensors that another one has.

    Args:
        source: the model that the tensors are from.
    """

    def __init__(self, source: Any) -> None:
        self._source, schema = source, _schema()
        self.model, self.graph = schema.ModelT(), schema.SubGraphT()
        self.model.version, self.model.subgraphs = source.version, [self.graph]
        self.model.buffers, self.model.operatorCodes = [schema.BufferT()], []
        self.graph.tensors, self.graph.operators = [], []
        self.graph.inputs, self.graph.outputs = [], []

    def tensor(self, tensor: Any) -> int:
        """The index of a copy of the tensor."""
        mine, buffer = copy.copy(tensor), self._source.buffers[tensor.buffer]
        mine.buffer = 0
        if buffer.data is not None:
            self.model.buffers.append(buffer)
            mine.buffer = len(self.model.buffers) - 1
        self.graph.tensors.append(mine)
        return len(self.graph.tensors) - 1

    def floats(self, tensor: Any) -> int:
        """The place of a float32 tensor of the shape of another one, without content."""
        made = copy.copy(tensor)
        made.type, made.quantization, made.buffer = _schema().TensorType.FLOAT32, None, 0
        return self.tensor(made)

    def operator(self, name: str, version: int, inputs: Sequence[int], outputs: Sequence[int]) -> Any:
        """A new operator between tensors."""
        made, code = _schema().OperatorT(), _schema().OperatorCodeT()
        code.builtinCode, code.version = _code(name), version
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        self.model.operatorCodes.append(code)
        made.opcodeIndex, made.inputs, made.outputs = len(self.model.operatorCodes) - 1, [*inputs], [*outputs]
        self.graph.operators.append(made)
        return made

    def content(self) -> bytes:
        """The file."""
        return bytes(_flatbuffers().convert_object_to_bytearray(self.model))


class TfliteFile:
    """A file of a fixture model, and its dense layers and norms, which are found by the order of its operations.

    What the converter calls them differs from version to version.

    Raises:
        ValueError: it has not as many dense layers as the model.
    """

    def __init__(self, content: bytes, model: Model) -> None:
        self._model = _flatbuffers().convert_bytearray_to_object(bytearray(content))
        (self._graph,) = self._model.subgraphs
        self._names = [self._name(operator) for operator in self._graph.operators]
        self.dense = self._heads(len(model.layers) - 1)
        heads = [id(each.operator) for each in self.dense.values()]
        body = [each for each in self._all_dense() if id(each.operator) not in heads]
        places = [place for place, layer in enumerate(model.layers) if isinstance(layer, Dense)]
        self.dense |= {f"{place}.weight": each for place, each in zip(places, body, strict=True)}
        self._norms = [place for place, layer in enumerate(model.layers) if isinstance(layer, LayerNorm)]

    def array(self, tensor: Any) -> Array:
        """The value of a constant tensor."""
        data = self._model.buffers[tensor.buffer].data
        format_name = _flatbuffers().type_to_name(tensor.type).lower()
        return np.frombuffer(bytes(data), format_name).reshape(tensor.shape)

    def norms(self) -> dict[str, Array]:
        """The parameters of layer norms: the first two constants behind the reciprocal of each root."""
        roots = [place for place, name in enumerate(self._names) if name == "RSQRT"]
        result: dict[str, Array] = {}
        for layer, root in zip(self._norms, roots, strict=True):
            behind = [
                self._graph.tensors[i] for each in self._graph.operators[root + 1 :] for i in each.inputs if i >= 0
            ]
            scale, shift, *_ = (self.array(tensor).reshape(-1) for tensor in behind if self._is_constant(tensor))
            result |= {f"{layer}.scale": scale, f"{layer}.shift": shift}
        return result

    def stored_bytes(self) -> int:
        """Bytes of all constants, and of scales and zero points of all tensors."""
        constants = [tensor for tensor in self._graph.tensors if self._is_constant(tensor)]
        buffers = {tensor.buffer: self.array(tensor).nbytes for tensor in constants}
        ranges = [t.quantization for t in self._graph.tensors if t.quantization is not None]
        lists = [each for r in ranges for each in (r.scale, r.zeroPoint) if each is not None]
        return sum(buffers.values()) + sum(np.asarray(each).nbytes for each in lists)

    def alone(self, dense: DenseOperation) -> bytes:
        """A file of one dense layer with the same tensors, float32 in and out, without an activation in it."""
        made = _Builder(self._model)
        constants = [made.tensor(dense.weight), -1 if dense.bias is None else made.tensor(dense.bias)]
        entering, leaving = made.tensor(dense.inputs), made.tensor(dense.outputs)
        made.graph.inputs, made.graph.outputs = [entering], [leaving]
        if dense.is_static:
            made.graph.inputs, made.graph.outputs = [made.floats(dense.inputs)], [made.floats(dense.outputs)]
            made.operator("QUANTIZE", 1, made.graph.inputs, [entering])
        version = self._model.operatorCodes[dense.operator.opcodeIndex].version
        operator = made.operator(_DENSE, version, [entering, *constants], [leaving])
        operator.builtinOptionsType = dense.operator.builtinOptionsType
        operator.builtinOptions = copy.copy(dense.operator.builtinOptions)
        operator.builtinOptions.fusedActivationFunction = _schema().ActivationFunctionType.NONE
        if dense.is_static:
            made.operator("DEQUANTIZE", 2, [leaving], made.graph.outputs)
        return made.content()

    def restoring(self, dense: DenseOperation) -> bytes:
        """A file whose output is a layer's dequantized weight."""
        made = _Builder(self._model)
        codes, values = made.tensor(dense.weight), made.floats(dense.weight)
        made.graph.outputs = [values]
        made.operator("DEQUANTIZE", 5, [codes], [values])
        return made.content()

    def _is_constant(self, tensor: Any) -> bool:
        return self._model.buffers[tensor.buffer].data is not None

    def _name(self, operator: Any) -> str:
        return str(_flatbuffers().opcode_to_name(self._model, operator.opcodeIndex))

    def _all_dense(self) -> list[DenseOperation]:
        named = zip(self._names, self._graph.operators, strict=True)
        return [self._dense(operator) for name, operator in named if name == _DENSE]

    def _dense(self, operator: Any) -> DenseOperation:
        places = [*operator.inputs, -1][:3]
        inputs, weight, bias = (None if place < 0 else self._graph.tensors[place] for place in places)
        return DenseOperation(operator, inputs, weight, bias, self._graph.tensors[operator.outputs[0]])

    def _heads(self, last: int) -> dict[str, DenseOperation]:
        """The dense layers whose results, restored from codes or not, are outputs, by the names of their weights."""
        makers = {operator.outputs[0]: operator for operator in self._graph.operators}
        (signature,) = self._model.signatureDefs
        result: dict[str, DenseOperation] = {}
        for output in signature.outputs:
            operator = makers[output.tensorIndex]
            if self._name(operator) == "DEQUANTIZE":
                operator = makers[operator.inputs[0]]
            result[f"{last}.{output.name.decode()}.weight"] = self._dense(operator)
        return result


def range_of(tensor: Any) -> CodeRange:
    """Scale and zero point of a tensor that has one of each."""
    (scale,), (zero_point,) = tensor.quantization.scale, tensor.quantization.zeroPoint
    return CodeRange(float(scale), int(zero_point))
