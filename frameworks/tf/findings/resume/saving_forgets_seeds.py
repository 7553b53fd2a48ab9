"""Neither Model.save nor tf.train.Checkpoint takes in seed generators, so dropout begins its stream again."""

import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf


def make() -> keras.Model:
    return keras.Sequential([keras.Input((16,)), keras.layers.Dropout(0.5, seed=1)])


model, fresh, folder = make(), make(), tempfile.TemporaryDirectory()
for _ in range(3):
    model(np.ones((1, 16)), training=True)
model.save(f"{folder.name}/model.keras")
path = tf.train.Checkpoint(model=model).save(f"{folder.name}/run")
tf.train.Checkpoint(model=fresh).restore(path).assert_consumed()
runs = (model, keras.saving.load_model(f"{folder.name}/model.keras"), fresh)
masks = ["".join(str(int(v > 0)) for v in run(np.ones((1, 16)), training=True)[0]) for run in runs]
template = "mask {} after load_model, {} after restore"
expected, seen = template.format(masks[0], masks[0]), template.format(*masks[1:])
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
