"""ReduceLROnPlateau takes a first metric of NaN for the best one, so the rate falls while later metrics improve."""

import sys

import keras

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(1.0), "mse")
callback = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=2)
callback.set_model(model)
callback.on_train_begin()
for epoch, metric in enumerate((float("nan"), 4.0, 3.0, 2.0, 1.0)):
    callback.on_epoch_end(epoch, {"loss": metric})
print("expected:", expected := "rate 1.0")
print("seen:    ", seen := f"rate {float(model.optimizer.learning_rate.numpy())}")
sys.exit(int(seen != expected))
