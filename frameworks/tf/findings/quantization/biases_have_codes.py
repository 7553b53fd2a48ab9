"""Quantization by calibrated ranges makes the float32 bias of a dense layer a 32-bit integer."""

import sys

import tensorflow as tf

weight, bias = tf.constant([[1.0], [-0.5]]), tf.constant([0.3])
samples = [tf.constant([[-1.0, 2.0]]), tf.constant([[3.0, -1.0]])]


@tf.function(input_signature=[tf.TensorSpec([1, 2])])
def dense(inputs: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(inputs @ weight, bias)


converter = tf.lite.TFLiteConverter.from_concrete_functions([dense.get_concrete_function()])
converter.optimizations = [tf.lite.Optimize.DEFAULT]
converter.representative_dataset = lambda: ([sample] for sample in samples)
details = tf.lite.Interpreter(model_content=converter.convert()).get_tensor_details()
formats = sorted(tensor["dtype"].__name__ for tensor in details if list(tensor["shape"]) == [1])

print("expected: a bias of float32")
print(f"seen: a bias of {formats[0]}")
sys.exit(int(formats != ["float32"]))
