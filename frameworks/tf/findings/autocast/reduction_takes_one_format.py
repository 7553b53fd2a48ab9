"""all_reduce under MirroredStrategy raises where the tensors of one call have more than one format."""

import sys

import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.config.threading.set_inter_op_parallelism_threads(8)
strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])


@tf.function
def total() -> list[tf.Tensor]:
    def step() -> list[tf.Tensor]:
        values = [tf.constant(1.0, tf.float32), tf.constant(1.0, tf.float64)]
        return list(tf.distribute.get_replica_context().all_reduce("sum", values))

    return [strategy.experimental_local_results(value)[0] for value in strategy.run(step)]


template = "{} of ones in float32 and float64 on two replicas"
expected = template.format([2.0, 2.0])
try:
    seen = template.format([float(value) for value in total()])
except TypeError as error:
    seen = f"TypeError: {str(error).partition('TypeError: ')[2].strip()}"
print(f"expected: {expected}\nseen: {seen}")
sys.exit(int(seen != expected))
