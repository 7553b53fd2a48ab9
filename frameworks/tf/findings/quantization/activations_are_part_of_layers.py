"""The converter makes a ReLU a part of the dense layer before it, whose calibrated range loses its results below 0."""

import sys

import tensorflow as tf

weight = tf.constant([[1.0]])


@tf.function(input_signature=[tf.TensorSpec([1, 1])])
def dense(inputs: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(inputs @ weight)


converter = tf.lite.TFLiteConverter.from_concrete_functions([dense.get_concrete_function()])
converter.optimizations = [tf.lite.Optimize.DEFAULT]
converter.representative_dataset = lambda: ([tf.constant([[value]])] for value in (-3.0, 1.0))
interpreter = tf.lite.Interpreter(model_content=converter.convert())
(layer,) = [operator for operator in interpreter._get_ops_details() if operator["op_name"] == "FULLY_CONNECTED"]
details = {tensor["index"]: tensor["quantization"] for tensor in interpreter.get_tensor_details()}
scale, zero_point = details[layer["outputs"][0]]
lowest, highest = (scale * (code - zero_point) for code in (-128, 127))

print("expected: results from -3 to 1")
print(f"seen: results from {lowest:.2g} to {highest:.2g}")
sys.exit(int(lowest > -2.9))
