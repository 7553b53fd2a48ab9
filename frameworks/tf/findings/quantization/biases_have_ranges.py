"""An int8 dense layer stores a scale and a zero point of each output twice, for weight and bias: 24 bytes."""

import sys

import tensorflow as tf
from tensorflow.lite.tools import flatbuffer_utils

weight, bias = tf.random.stateless_normal((16, 64), [1, 2]), tf.ones(64)


@tf.function(input_signature=[tf.TensorSpec([1, 16])])
def dense(inputs: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(inputs @ weight, bias)


converter = tf.lite.TFLiteConverter.from_concrete_functions([dense.get_concrete_function()])
converter.optimizations = [tf.lite.Optimize.DEFAULT]
converter.representative_dataset = lambda: ([tf.random.stateless_normal((1, 16), [3, i])] for i in range(8))
(graph,) = flatbuffer_utils.read_model_from_bytearray(bytearray(converter.convert())).subgraphs
count = 0
for ranges in (tensor.quantization for tensor in graph.tensors if tensor.quantization is not None):
    arrays = [array for array in (ranges.scale, ranges.zeroPoint) if array is not None]
    count += sum(array.nbytes for array in arrays if len(array) == 64)

print("expected: at most 16 bytes for each output")
print(f"seen: {count / 64:g} bytes for each output")
sys.exit(int(count > 16 * 64))
