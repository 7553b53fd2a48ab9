"""An interpreter runs any model file: one with 3 outputs is loaded in the place of one with 2, without an error."""

import sys

import tensorflow as tf


def content(outputs: int) -> bytes:
    weight = tf.ones((4, outputs))
    run = tf.function(lambda inputs: inputs @ weight, input_signature=[tf.TensorSpec([1, 4])])
    return tf.lite.TFLiteConverter.from_concrete_functions([run.get_concrete_function()]).convert()


meant = tf.lite.Interpreter(model_content=content(2)).get_output_details()[0]["shape"]
loaded = tf.lite.Interpreter(model_content=content(3)).get_output_details()[0]["shape"]

print("expected: an error")
print(f"seen: a model with outputs of shape {loaded.tolist()} in place of {meant.tolist()}")
sys.exit(int(loaded.tolist() != meant.tolist()))
