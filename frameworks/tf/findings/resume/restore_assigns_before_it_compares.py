"""Checkpoint.read assigns what matches before assert_consumed tells that the checkpoint is another run's."""

import sys
import tempfile

import tensorflow as tf

folder = tempfile.TemporaryDirectory()
path = tf.train.Checkpoint(a=tf.Variable(1.0), b=tf.Variable(1.0)).write(f"{folder.name}/run")
variable = tf.Variable(2.0)
try:
    tf.train.Checkpoint(a=variable).read(path).assert_consumed()
    outcome = "no refusal"
except AssertionError:
    outcome = "AssertionError"
expected, seen = "variable 2.0 after AssertionError", f"variable {float(variable)} after {outcome}"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
