"""A save in the background writes Python state as it is when the writer reaches it."""

import sys
import tempfile
import threading

import tensorflow as tf


class Number(tf.train.experimental.PythonState):
    value = 1.0

    def serialize(self):
        changed.wait(60)
        return str(self.value)

    def deserialize(self, text):
        self.value = float(text)


changed, number, path = threading.Event(), Number(), f"{(temporary := tempfile.TemporaryDirectory()).name}/run"
saved = tf.train.Checkpoint(number=number)
saved.write(path, tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True))
number.value = 2.0
changed.set()
saved.sync()
tf.train.Checkpoint(number=(loaded := Number())).read(path)
print("expected: number 1.0, that of the call")
print(f"seen: number {loaded.value}, that of the call")
sys.exit(int(loaded.value != 1.0))
