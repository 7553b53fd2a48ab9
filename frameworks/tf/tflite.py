"""Models quantized after training by `tf.lite.TFLiteConverter` and run by `tf.lite.Interpreter`, and their files."""

import copy
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from fixtures.model import Dense, LayerNorm, Model, dense_weights
from fixtures.models import digits_mlp
from frameworks.contract import Calibrated, Capability, CodeRange, LinearRule, Quantized, QuantRule, Unsupported
from frameworks.tf.core.settings import THREADS
from frameworks.tf.quantization import trained_network

_DENSE = "FULLY_CONNECTED"
MODE = "tflite"
FILE = "model.tflite"
NOT_THERE = "this TensorFlow has no tf.lite, which LiteRT follows as a package of its own"

_WEIGHTS = QuantRule(-127, 127, 127.0, axis=0)
_ACTIVATIONS = QuantRule(-128, 127, 255.0, symmetric=False)
DYNAMIC = "dynamic-int8"
_FEWEST = 1024
_RULES: Mapping[str, LinearRule] = MappingProxyType(
    {
        DYNAMIC: LinearRule(_WEIGHTS, inputs=replace(_ACTIVATIONS, axis=1), smallest=_FEWEST),
        "static-int8": LinearRule(_WEIGHTS, inputs=_ACTIVATIONS, outputs=_ACTIVATIONS, ranges="calibration"),
    }
)
"""Static follows TensorFlow Lite's 8-bit quantization specification; no field of a rule covers its int32 biases.

Dynamic is dynamic-range quantization, as TensorFlow Lite calls it: weights of fewer than 1024 entries stay in float32,
as the converter reports (tensorflow#53094), and kernels take the range of each row of inputs at each call.
"""
_KEEPS_NO_LAYER = (
    "a layer by name is left out by denylisted_nodes of tf.lite.experimental.QuantizationDebugger, "
    "which quantizes by calibrated ranges alone"
)


def has_lite() -> bool:
    """Returns whether TensorFlow includes Lite."""
    return hasattr(tf, "lite") and hasattr(tf.lite, "TFLiteConverter")


def find_missing() -> tuple[Capability, ...]:
    """The capabilities of the techniques that this TensorFlow lacks."""
    return () if has_lite() else tuple(Capability(f"quantization.{name}") for name in _RULES)


def environment() -> dict[str, str]:
    """The runtime of quantized models, for a record's environment."""
    return {"tflite_runtime": f"tf.lite.Interpreter of TensorFlow {tf.__version__}, {THREADS} thread"}


class TfliteQuantizedModel:
    """A quantized model: the content of a model file, run by the interpreter."""

    def __init__(self, content: bytes, model: Model) -> None:
        self._model = model
        self._load(content)

    def _load(self, content: bytes) -> None:
        interpreter = _make_interpreter(content)
        self._content, self._file = content, TfliteFile(content, self._model)
        self._runner = interpreter.get_signature_runner()
        self._interpreters: dict[str, Any] = {}
        self._dequantized: dict[str, Array] = {}

    def predict(self, inputs: Array) -> dict[str, Array]:
        (name,) = self._runner.get_input_details()
        return {head: np.array(value) for head, value in self._runner(**{name: np.ascontiguousarray(inputs)}).items()}

    def layer(self, name: str, inputs: Array) -> Array:
        if name not in self._interpreters:
            self._interpreters[name] = _make_interpreter(self._file.extract_layer(self._file.dense[name]))
        interpreter = self._interpreters[name]
        (input_details,), (output_details,) = interpreter.get_input_details(), interpreter.get_output_details()
        interpreter.resize_tensor_input(input_details["index"], inputs.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(input_details["index"], np.ascontiguousarray(inputs))
        interpreter.invoke()
        return np.array(interpreter.get_tensor(output_details["index"]))

    def weights(self) -> dict[str, Quantized | None]:
        return {name: self._weight(name) for name in dense_weights(self._model)}

    def _weight(self, name: str) -> Quantized | None:
        """The quantized weight (inputs, outputs) of a layer, which the file stores as (outputs, inputs)."""
        dense = self._file.dense[name]
        if not dense.has_codes:
            return None
        if name not in self._dequantized:
            resolver = tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
            interpreter = _make_interpreter(self._file.build_dequantizer(dense), experimental_op_resolver_type=resolver)
            interpreter.invoke()
            (output_details,) = interpreter.get_output_details()
            self._dequantized[name] = np.array(interpreter.get_tensor(output_details["index"]))
        ranges = dense.weight.quantization
        return Quantized(
            self._file.array(dense.weight).T.astype(np.int32),
            np.asarray(ranges.scale, np.float64)[None, :],
            np.asarray(ranges.zeroPoint, np.int32)[None, :],
            self._dequantized[name].T,
        )

    def unquantized_parameters(self) -> dict[str, Array]:
        """As in the contract; the biases of layers with quantized outputs are int32 codes."""
        result = self._file.norms()
        for name, dense in self._file.dense.items():
            if not dense.has_codes:
                result[name] = self._file.array(dense.weight).T
            if dense.bias is not None:
                result[name.removesuffix("weight") + "bias"] = self._file.array(dense.bias)
        shapes = self._model.parameter_shapes()
        return {name: result[name] for name in shapes if name in result}

    def calibrated_ranges(self) -> dict[str, Calibrated]:
        static = {name: dense for name, dense in self._file.dense.items() if dense.is_static}
        return {name: Calibrated(range_of(dense.inputs), range_of(dense.outputs)) for name, dense in static.items()}

    def stored_bytes(self) -> int:
        return self._file.stored_bytes()

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        (path / FILE).write_bytes(self._content)

    def restore(self, path: Path) -> None:
        self._load((path / FILE).read_bytes())


class TflitePostTraining:
    """Post-training quantization for a CPU; it has no techniques on other devices, or if TensorFlow lacks Lite."""

    def __init__(self, device: str) -> None:
        self._device = device

    def rules(self) -> Mapping[str, LinearRule]:
        return _RULES if self._device == "cpu" and has_lite() else {}

    def quantize(
        self,
        technique: str,
        model: Model,
        weights: Mapping[str, Array],
        calibration: Sequence[Array] = (),
        skip: Sequence[str] = (),
    ) -> TfliteQuantizedModel:
        network, _ = trained_network(model, weights, skip)
        if technique == DYNAMIC:
            if skip:
                raise Unsupported(Capability(f"quantization.{DYNAMIC}"), _KEEPS_NO_LAYER, _leaves_layer_out)
            return TfliteQuantizedModel(_quantize_by_call(network), model)

        def samples() -> Iterator[list[Array]]:
            for batch in calibration:
                for row in range(len(batch)):
                    yield [np.ascontiguousarray(batch[row : row + 1])]

        return TfliteQuantizedModel(_quantize_dense(network, model, samples, skip), model)


def _quantize_dense(
    network: keras.Model, model: Model, samples: Callable[[], Iterator[list[Array]]] | None, skip: Sequence[str]
) -> bytes:
    """The content of a model file in which only the dense layers are quantized, except those in `skip`.

    Selective quantization, as TensorFlow calls it, leaves other operations unchanged.
    """
    with _quiet():
        converter = tf.lite.TFLiteConverter.from_keras_model(network)
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = samples
        others = [name for name in vars(_schema().BuiltinOperator) if name.isupper() and name != _DENSE]
        options = tf.lite.experimental.QuantizationDebugOptions(denylisted_ops=others)
        debugger = tf.lite.experimental.QuantizationDebugger(
            converter=converter, debug_dataset=samples, debug_options=options
        )
        if skip:
            dense = TfliteFile(debugger.calibrated_model, model).dense
            options.denylisted_nodes = [dense[name].outputs.name.decode() for name in skip]
        return bytes(debugger.get_nondebug_quantized_model())


def _quantize_by_call(network: keras.Model) -> bytes:
    """The content of a model file with quantized large weights; kernels take the ranges of inputs at each call."""
    with _quiet():
        converter = tf.lite.TFLiteConverter.from_keras_model(network)
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        return bytes(converter.convert())


def _leaves_layer_out() -> bool:
    """Returns whether, without calibration, a denylisted layer stays in float32 while another is quantized."""
    model = digits_mlp((64, 64))
    network, _ = trained_network(model, model.weights(0), ())
    dense = TfliteFile(_quantize_dense(network, model, None, ["0.weight"]), model).dense
    skipped, other = dense["0.weight"], dense["2.weight"]
    return other.has_codes and not other.is_static and not skipped.has_codes


def _make_interpreter(content: bytes, **options: Any) -> Any:
    with _quiet():
        interpreter = tf.lite.Interpreter(model_content=content, num_threads=THREADS, **options)
    interpreter.allocate_tensors()
    return interpreter


@contextmanager
def _quiet() -> Iterator[None]:
    """Within the context, suppresses two expected warnings of `tf.lite`, and the output of Keras' export."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.filterwarnings("ignore", r"(?s).*tf\.lite\.Interpreter is deprecated", UserWarning)
        warnings.filterwarnings("ignore", "Statistics for quantized inputs were expected", UserWarning)
        yield


@cache
def _schema() -> Any:
    """Schema classes of a model file; missing in TensorFlow without Lite."""
    return import_module("tensorflow.lite.python.schema_py_generated")


@cache
def _flatbuffers() -> Any:
    """Readers and writers of a model file; missing in TensorFlow without Lite."""
    return import_module("tensorflow.lite.tools.flatbuffer_utils")


@dataclass(frozen=True)
class DenseOperation:
    """The operator of one dense layer in a file, and its tensors; the bias may be None."""

    operator: Any
    inputs: Any
    weight: Any
    bias: Any
    outputs: Any

    @property
    def has_codes(self) -> bool:
        """True if the weight is quantized, so that the operation multiplies integers."""
        return bool(self.weight.type == _schema().TensorType.INT8)

    @property
    def is_static(self) -> bool:
        """True if inputs and outputs are quantized too, with ranges that the file stores."""
        return bool(self.inputs.type == _schema().TensorType.INT8)


class _Builder:
    """Builds a model file from tensors of another one.

    Args:
        source: the model in the other file.
    """

    def __init__(self, source: Any) -> None:
        self._source, schema = source, _schema()
        self.model, self.graph = schema.ModelT(), schema.SubGraphT()
        self.model.version, self.model.subgraphs = source.version, [self.graph]
        self.model.buffers, self.model.operatorCodes = [schema.BufferT()], []
        self.graph.tensors, self.graph.operators = [], []
        self.graph.inputs, self.graph.outputs = [], []

    def add_tensor(self, tensor: Any) -> int:
        """Adds a copy of the tensor, with its content; returns its index."""
        result, buffer = copy.copy(tensor), self._source.buffers[tensor.buffer]
        result.buffer = 0
        if buffer.data is not None:
            self.model.buffers.append(buffer)
            result.buffer = len(self.model.buffers) - 1
        self.graph.tensors.append(result)
        return len(self.graph.tensors) - 1

    def add_float_tensor(self, like: Any) -> int:
        """Adds a float32 tensor without content, with the shape of another tensor; returns its index."""
        result = copy.copy(like)
        result.type, result.quantization, result.buffer = _schema().TensorType.FLOAT32, None, 0
        return self.add_tensor(result)

    def add_operator(self, name: str, version: int, inputs: Sequence[int], outputs: Sequence[int]) -> Any:
        """Adds an operator between tensors, which the indices name; returns it."""
        result, code = _schema().OperatorT(), _schema().OperatorCodeT()
        code.builtinCode, code.version = int(getattr(_schema().BuiltinOperator, name)), version
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        self.model.operatorCodes.append(code)
        result.opcodeIndex, result.inputs, result.outputs = len(self.model.operatorCodes) - 1, [*inputs], [*outputs]
        self.graph.operators.append(result)
        return result

    def encode(self) -> bytes:
        """Returns the content of the file."""
        return bytes(_flatbuffers().convert_object_to_bytearray(self.model))


class TfliteFile:
    """A file of a fixture model; it finds the dense layers and layer norms by the order of the operations.

    The names that the converter gives them differ between versions.

    Raises:
        ValueError: the file and the model differ in the number of dense layers.
    """

    def __init__(self, content: bytes, model: Model) -> None:
        self._model = _flatbuffers().convert_bytearray_to_object(bytearray(content))
        (self._graph,) = self._model.subgraphs
        self._names = [self._name(operator) for operator in self._graph.operators]
        self.dense = self._heads(len(model.layers) - 1)
        heads = [id(layer.operator) for layer in self.dense.values()]
        operators = zip(self._names, self._graph.operators, strict=True)
        body = [self._dense(operator) for name, operator in operators if name == _DENSE and id(operator) not in heads]
        indices = [index for index, layer in enumerate(model.layers) if isinstance(layer, Dense)]
        self.dense |= {f"{index}.weight": operation for index, operation in zip(indices, body, strict=True)}
        self._norms = [index for index, layer in enumerate(model.layers) if isinstance(layer, LayerNorm)]

    def array(self, tensor: Any) -> Array:
        """The value of a constant tensor."""
        data = self._model.buffers[tensor.buffer].data
        format_name = _flatbuffers().type_to_name(tensor.type).lower()
        return np.frombuffer(bytes(data), format_name).reshape(tensor.shape)

    def norms(self) -> dict[str, Array]:
        """The parameters of layer norms: the first two constants after each reciprocal square root."""
        roots = [index for index, name in enumerate(self._names) if name == "RSQRT"]
        result: dict[str, Array] = {}
        for layer, root in zip(self._norms, roots, strict=True):
            after = [self._graph.tensors[i] for op in self._graph.operators[root + 1 :] for i in op.inputs if i >= 0]
            scale, shift, *_ = (self.array(tensor).reshape(-1) for tensor in after if self._is_constant(tensor))
            result |= {f"{layer}.scale": scale, f"{layer}.shift": shift}
        return result

    def stored_bytes(self) -> int:
        """Bytes of all constants, and of scales and zero points of all tensors."""
        constants = [tensor for tensor in self._graph.tensors if self._is_constant(tensor)]
        buffers = {tensor.buffer: self.array(tensor).nbytes for tensor in constants}
        ranges = [t.quantization for t in self._graph.tensors if t.quantization is not None]
        arrays = [array for entry in ranges for array in (entry.scale, entry.zeroPoint) if array is not None]
        return sum(buffers.values()) + sum(np.asarray(array).nbytes for array in arrays)

    def extract_layer(self, dense: DenseOperation) -> bytes:
        """The content of a file of one dense layer: the same tensors, float32 in and out, no fused activation."""
        builder = _Builder(self._model)
        constants = [builder.add_tensor(dense.weight), -1 if dense.bias is None else builder.add_tensor(dense.bias)]
        inputs, outputs = builder.add_tensor(dense.inputs), builder.add_tensor(dense.outputs)
        builder.graph.inputs, builder.graph.outputs = [inputs], [outputs]
        if dense.is_static:
            builder.graph.inputs = [builder.add_float_tensor(dense.inputs)]
            builder.graph.outputs = [builder.add_float_tensor(dense.outputs)]
            builder.add_operator("QUANTIZE", 1, builder.graph.inputs, [inputs])
        version = self._model.operatorCodes[dense.operator.opcodeIndex].version
        operator = builder.add_operator(_DENSE, version, [inputs, *constants], [outputs])
        operator.builtinOptionsType = dense.operator.builtinOptionsType
        operator.builtinOptions = copy.copy(dense.operator.builtinOptions)
        operator.builtinOptions.fusedActivationFunction = _schema().ActivationFunctionType.NONE
        if dense.is_static:
            builder.add_operator("DEQUANTIZE", 2, [outputs], builder.graph.outputs)
        return builder.encode()

    def build_dequantizer(self, dense: DenseOperation) -> bytes:
        """The content of a file whose output is a layer's dequantized weight (outputs, inputs)."""
        builder = _Builder(self._model)
        codes, values = builder.add_tensor(dense.weight), builder.add_float_tensor(dense.weight)
        builder.graph.outputs = [values]
        builder.add_operator("DEQUANTIZE", 5, [codes], [values])
        return builder.encode()

    def _is_constant(self, tensor: Any) -> bool:
        return self._model.buffers[tensor.buffer].data is not None

    def _name(self, operator: Any) -> str:
        return str(_flatbuffers().opcode_to_name(self._model, operator.opcodeIndex))

    def _dense(self, operator: Any) -> DenseOperation:
        indices = [*operator.inputs, -1][:3]  # a layer without a bias has two inputs, or -1 for the third
        inputs, weight, bias = (None if index < 0 else self._graph.tensors[index] for index in indices)
        return DenseOperation(operator, inputs, weight, bias, self._graph.tensors[operator.outputs[0]])

    def _heads(self, last: int) -> dict[str, DenseOperation]:
        """The dense layers whose results, dequantized or not, are outputs of the file, by names of weights."""
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
    """Scale and zero point of a tensor quantized as a whole."""
    (scale,), (zero_point,) = tensor.quantization.scale, tensor.quantization.zeroPoint
    return CodeRange(float(scale), int(zero_point))
