"""ReduceLROnPlateau counts the last epoch of its cooldown as one to wait: a cooldown of one epoch has no effect."""

import sys

import keras

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(1.0), "mse")
callback = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, cooldown=1)
callback.set_model(model)
callback.on_train_begin()
rates = []
for epoch in range(5):
    callback.on_epoch_end(epoch, {"loss": 1.0})
    rates.append(float(model.optimizer.learning_rate.numpy()))
print("expected:", expected := [1.0, 0.5, 0.5, 0.25, 0.25])
print("seen:    ", rates)
sys.exit(int(rates != expected))
