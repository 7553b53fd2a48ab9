"""In a model for batches of any size the converter adds a layer's bias, times the next weight, to the next bias."""

import sys

import tensorflow as tf

weights, biases = [tf.ones((2, 3)), tf.ones((3, 4))], [tf.fill([3], 2.0), tf.fill([4], 5.0)]


@tf.function(input_signature=[tf.TensorSpec([None, 2])])
def model(inputs: tf.Tensor) -> tf.Tensor:
    hidden = tf.nn.bias_add(inputs @ weights[0], biases[0])
    return tf.nn.bias_add(hidden @ weights[1], biases[1])


converter = tf.lite.TFLiteConverter.from_concrete_functions([model.get_concrete_function()])
interpreter = tf.lite.Interpreter(model_content=converter.convert())
interpreter.allocate_tensors()
vectors = [tensor["index"] for tensor in interpreter.get_tensor_details() if len(tensor["shape"]) == 1]
seen = [interpreter.get_tensor(index).tolist() for index in vectors]
print("expected: biases of 2 and 5, as the layers have")
print(f"seen: {seen}")
sys.exit(int(seen == [[11.0] * 4]))
