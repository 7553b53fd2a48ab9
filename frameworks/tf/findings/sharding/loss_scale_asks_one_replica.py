"""LossScaleOptimizer under MirroredStrategy looks for overflow in the first replica's gradients alone."""

import sys

import keras
import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.config.threading.set_inter_op_parallelism_threads(8)
strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
with strategy.scope():
    weight = keras.Variable(1.0)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=16.0)
    optimizer.build([weight])


def step(slope: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(weight.value * slope)
    optimizer.apply(tape.gradient(loss, [weight.value]), [weight])


slopes = tf.constant([1.0, float("inf")])
inputs = strategy.experimental_distribute_values_from_function(lambda replica: slopes[replica.replica_id_in_sync_group])
tf.function(strategy.run)(step, [inputs])
template = "weight {} and scale {} after an infinite gradient on the second replica"
expected, seen = template.format(1.0, 8.0), template.format(weight.numpy(), optimizer.dynamic_scale.numpy())
print(f"expected: {expected}\nseen: {seen}")
sys.exit(int(seen != expected))
