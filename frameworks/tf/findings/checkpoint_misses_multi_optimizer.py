"""tf.train.Checkpoint leaves out the optimizers inside a MultiOptimizer, and its restore is content."""

import sys
import tempfile

import keras
import tensorflow as tf


def make() -> tuple[keras.optimizers.Optimizer, keras.optimizers.Optimizer]:
    inside = keras.optimizers.SGD(0.5, momentum=0.5)
    both = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(inside))
    both.build([keras.Variable(0.0)])
    return both, inside


(saved, first), (loaded, second) = make(), make()
first.momentums[0].assign(3.0)
path = tf.train.Checkpoint(optimizer=saved).save(f"{tempfile.mkdtemp()}/run")
tf.train.Checkpoint(optimizer=loaded).restore(path).assert_consumed()
seen = float(second.momentums[0])
print("expected: 3.0, the momentum that was saved")
print(f"seen: {seen}")
sys.exit(int(seen != 3.0))
