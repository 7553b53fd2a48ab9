"""In a graph a matrix product, its bias and a ReLU become one operation on a CPU, for which the ReLU of NaN is 0."""

import sys

import tensorflow as tf


def layer(inputs: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(tf.nn.bias_add(tf.matmul(inputs, kernel), bias))[0, 0]


arguments = tf.constant([[float("inf")]]), tf.zeros((1, 1)), tf.zeros((1,))
eager, graph = float(layer(*arguments)), float(tf.function(layer)(*arguments))
expected = "infinity times 0 is nan behind a ReLU, and nan in a graph"
seen = f"infinity times 0 is {eager:g} behind a ReLU, and {graph:g} in a graph"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
