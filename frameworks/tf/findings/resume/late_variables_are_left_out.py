"""A variable that a checkpoint gets after its first save in the background is in no later one."""

import sys
import tempfile

import tensorflow as tf

folder, background = (
    (temporary := tempfile.TemporaryDirectory()).name,
    tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True),
)
checkpoint = tf.train.Checkpoint(value=tf.Variable(1.0))
checkpoint.write(f"{folder}/first", background)
checkpoint.late = tf.Variable(2.0)
checkpoint.write(f"{folder}/second", background)
checkpoint.sync()
names = [name for name, _ in tf.train.list_variables(f"{folder}/second")]
seen = any(name.startswith("late/") for name in names)
print("expected: the second save holds the late variable: True")
print(f"seen: the second save holds the late variable: {seen}")
sys.exit(int(not seen))
