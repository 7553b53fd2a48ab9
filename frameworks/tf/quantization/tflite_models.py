"""Trained models that `tf.lite.TFLiteConverter` quantizes and `tf.lite.Interpreter` runs."""

import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from fixtures.model import Model, dense_weights
from fixtures.models import digits_mlp
from frameworks.contract import Attempt, Calibrated, Capability, LinearRule, Quantized, QuantRule, Unsupported
from frameworks.tf.core.settings import THREADS
from frameworks.tf.quantization.post_training import trained_network
from frameworks.tf.quantization.tflite_files import TfliteFile, other_operations, range_of

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
"""Static is as the 8-bit quantization specification has it; biases in codes of 32 bits have no place in a rule.

Dynamic is what TensorFlow Lite calls dynamic-range quantization: weights of fewer than 1024 entries stay in
float32, as the converter reports (tensorflow#53094), and kernels take the range of every row of a call.
"""
_KEEPS_NO_LAYER = (
    "a layer by name is left out by denylisted_nodes of tf.lite.experimental.QuantizationDebugger, "
    "which quantizes by calibrated ranges alone"
)


def has_lite() -> bool:
    """Whether TensorFlow includes Lite."""
    return hasattr(tf, "lite") and hasattr(tf.lite, "TFLiteConverter")


def refused() -> dict[Capability, str]:
    """Missing techniques, with reasons."""
    return {} if has_lite() else {Capability(f"quantization.{name}"): NOT_THERE for name in _RULES}


def refused_attempts() -> dict[Capability, Attempt]:
    """Attempts for missing techniques."""
    return {} if has_lite() else {Capability(f"quantization.{name}"): _makes_a_converter for name in _RULES}


def _makes_a_converter() -> bool:
    return tf.lite.TFLiteConverter is not None


def environment() -> dict[str, str]:
    """The runtime of quantized models."""
    return {"tflite_runtime": f"tf.lite.Interpreter of TensorFlow {tf.__version__}, {THREADS} thread"}


class TfliteQuantizedModel:
    """A model file, run by the interpreter."""

    def __init__(self, content: bytes, model: Model) -> None:
        self._model = model
        self._load(content)

    def _load(self, content: bytes) -> None:
        interpreter = _interpreter(content)
        self._content, self._file = content, TfliteFile(content, self._model)
        self._runner = interpreter.get_signature_runner()
        self._alone: dict[str, Any] = {}
        self._restored: dict[str, Array] = {}

    def predict(self, inputs: Array) -> dict[str, Array]:
        (name,) = self._runner.get_input_details()
        return {head: np.array(value) for head, value in self._runner(**{name: np.ascontiguousarray(inputs)}).items()}

    def layer(self, name: str, inputs: Array) -> Array:
        if name not in self._alone:
            self._alone[name] = _interpreter(self._file.alone(self._file.dense[name]))
        interpreter = self._alone[name]
        (entering,), (leaving,) = interpreter.get_input_details(), interpreter.get_output_details()
        interpreter.resize_tensor_input(entering["index"], inputs.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(entering["index"], np.ascontiguousarray(inputs))
        interpreter.invoke()
        return np.array(interpreter.get_tensor(leaving["index"]))

    def weights(self) -> dict[str, Quantized | None]:
        return {name: self._weight(name) for name in dense_weights(self._model)}

    def _weight(self, name: str) -> Quantized | None:
        """The weight (inputs, outputs) of a layer in codes, which the file has as (outputs, inputs)."""
        dense = self._file.dense[name]
        if not dense.has_codes:
            return None
        if name not in self._restored:
            plain = tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
            interpreter = _interpreter(self._file.restoring(dense), experimental_op_resolver_type=plain)
            interpreter.invoke()
            (leaving,) = interpreter.get_output_details()
            self._restored[name] = np.array(interpreter.get_tensor(leaving["index"]))
        ranges = dense.weight.quantization
        return Quantized(
            self._file.array(dense.weight).T.astype(np.int32),
            np.asarray(ranges.scale, np.float64)[None, :],
            np.asarray(ranges.zeroPoint, np.int32)[None, :],
            self._restored[name].T,
        )

    def unquantized(self) -> dict[str, Array]:
        """Biases of layers with codes for outputs are codes, too: integers of 32 bits."""
        result = self._file.norms()
        for name, dense in self._file.dense.items():
            if not dense.has_codes:
                result[name] = self._file.array(dense.weight).T
            if dense.bias is not None:
                result[name.removesuffix("weight") + "bias"] = self._file.array(dense.bias)
        shapes = self._model.parameter_shapes()
        return {name: result[name] for name in shapes if name in result}

    def calibrated(self) -> dict[str, Calibrated]:
        result = {name: dense for name, dense in self._file.dense.items() if dense.is_static}
        return {name: Calibrated(range_of(dense.inputs), range_of(dense.outputs)) for name, dense in result.items()}

    def stored_bytes(self) -> int:
        return self._file.stored_bytes()

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        (path / FILE).write_bytes(self._content)

    def restore(self, path: Path) -> None:
        self._load((path / FILE).read_bytes())


class TflitePostTraining:
    """Quantization of trained models for a CPU; it has no technique where TensorFlow has no Lite."""

    def __init__(self, device: str) -> None:
        self._device = device

    def rules(self) -> Mapping[str, LinearRule]:
        return _RULES if self._device == "cpu" and has_lite() else {}

    def quantized(
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
                raise Unsupported(Capability(f"quantization.{DYNAMIC}"), _KEEPS_NO_LAYER, _leaves_one_out)
            return TfliteQuantizedModel(_by_ranges_of_calls(network), model)

        def samples() -> Iterator[list[Array]]:
            for batch in calibration:
                for place in range(len(batch)):
                    yield [np.ascontiguousarray(batch[place : place + 1])]

        return TfliteQuantizedModel(_dense_in_codes(network, model, samples, skip), model)


def _dense_in_codes(
    network: keras.Model, model: Model, samples: Callable[[], Iterator[list[Array]]] | None, skip: Sequence[str]
) -> bytes:
    """The model file whose dense layers alone, but for those that are skipped, have codes.

    Other operations are left as they are by what TensorFlow calls selective quantization.
    """
    with _quiet():
        converter = tf.lite.TFLiteConverter.from_keras_model(network)
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = samples
        options = tf.lite.experimental.QuantizationDebugOptions(denylisted_ops=other_operations())
        debugger = tf.lite.experimental.QuantizationDebugger(
            converter=converter, debug_dataset=samples, debug_options=options
        )
        if skip:
            dense = TfliteFile(debugger.calibrated_model, model).dense
            options.denylisted_nodes = [dense[name].outputs.name.decode() for name in skip]
        return bytes(debugger.get_nondebug_quantized_model())


def _by_ranges_of_calls(network: keras.Model) -> bytes:
    """The model file whose large weights have codes."""
    with _quiet():
        converter = tf.lite.TFLiteConverter.from_keras_model(network)
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        return bytes(converter.convert())


def _leaves_one_out() -> bool:
    """Whether, without calibration, a denylisted layer stays in float32 while another is quantized."""
    model = digits_mlp((64, 64))
    network, _ = trained_network(model, model.weights(0), ())
    dense = TfliteFile(_dense_in_codes(network, model, None, ["0.weight"]), model).dense
    left, other = dense["0.weight"], dense["2.weight"]
    return other.has_codes and not other.is_static and not left.has_codes


def _interpreter(content: bytes, **more: Any) -> Any:
    with _quiet():
        made = tf.lite.Interpreter(model_content=content, num_threads=THREADS, **more)
    made.allocate_tensors()
    return made


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses warnings that `tf.lite` is deprecated, and output of Keras' export."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.filterwarnings("ignore", r"(?s).*tf\.lite\.Interpreter is deprecated", UserWarning)
        warnings.filterwarnings("ignore", "Statistics for quantized inputs were expected", UserWarning)
        yield
