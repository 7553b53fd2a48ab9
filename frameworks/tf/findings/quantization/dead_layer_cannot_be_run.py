"""An interpreter with its default delegate raises for an int8 model with a ReLU whose results were 0 in calibration."""

import sys

import tensorflow as tf

weight, next_weight = tf.ones((2, 1)), tf.ones((1, 1))


@tf.function(input_signature=[tf.TensorSpec([1, 2])])
def run(inputs: tf.Tensor) -> tf.Tensor:
    dead = tf.nn.relu(tf.nn.bias_add(inputs @ weight, tf.constant([-9.0])))
    return tf.nn.bias_add(dead @ next_weight, tf.constant([0.5]))


converter = tf.lite.TFLiteConverter.from_concrete_functions([run.get_concrete_function()])
converter.optimizations = [tf.lite.Optimize.DEFAULT]
converter.representative_dataset = lambda: ([tf.constant([[value, 1.0]])] for value in (0.0, 1.0))
content = converter.convert()
plain = tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
tf.lite.Interpreter(model_content=content, experimental_op_resolver_type=plain).allocate_tensors()

print("expected: an interpreter that runs the model, as one without delegates does")
try:
    tf.lite.Interpreter(model_content=content).allocate_tensors()
except RuntimeError as error:
    print(f"seen: RuntimeError: {error}")
    sys.exit(1)
print("seen: an interpreter that runs the model, as one without delegates does")
