"""No layer can be left out of quantization by ranges of each call: only a debugger that needs samples takes names."""

import sys

import tensorflow as tf

weight = tf.ones((64, 64))


@tf.function(input_signature=[tf.TensorSpec([1, 64])])
def model(inputs: tf.Tensor) -> tf.Tensor:
    return inputs @ weight


converter = tf.lite.TFLiteConverter.from_concrete_functions([model.get_concrete_function()])
converter.optimizations = [tf.lite.Optimize.DEFAULT]
options = tf.lite.experimental.QuantizationDebugOptions(denylisted_nodes=["MatMul"])
try:
    debugger = tf.lite.experimental.QuantizationDebugger(converter=converter, debug_options=options)
    debugger.get_nondebug_quantized_model()
    seen = "a model"
except ValueError as error:
    seen = f"ValueError: {error}"
print("expected: a model in which that layer is left out")
print(f"seen: {seen}")
sys.exit(seen != "a model")
