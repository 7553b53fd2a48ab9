"""global_clipnorm under MirroredStrategy clips each replica's gradients by their own norm, before they are added up."""

import sys

import keras
import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.config.threading.set_inter_op_parallelism_threads(8)
strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
with strategy.scope():
    weights = [keras.Variable(0.0), keras.Variable(0.0)]
    optimizer = keras.optimizers.SGD(1.0, global_clipnorm=1.25)
    optimizer.build(weights)


def step(slopes: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = sum(weight.value * slope for weight, slope in zip(weights, tf.unstack(slopes), strict=True))
    optimizer.apply(tape.gradient(loss, [weight.value for weight in weights]), weights)


halves = tf.constant([[1.5, 0.0], [0.0, 2.0]])
inputs = strategy.experimental_distribute_values_from_function(lambda replica: halves[replica.replica_id_in_sync_group])
tf.function(strategy.run)(step, [inputs])
template = "({}, {}) from the gradient (1.5, 2.0), clipped from 2.5 to 1.25"
expected, seen = template.format(-0.75, -1.0), template.format(*(weight.numpy() for weight in weights))
print(f"expected: {expected}\nseen: {seen}")
sys.exit(int(seen != expected))
