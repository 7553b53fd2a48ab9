"""The adapter of TensorFlow with Keras 3."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

import tensorflow as tf

from frameworks.tf.framework import TensorFlowFramework

tf.get_logger().setLevel("ERROR")  # no warning of many traces: each run has its own function

__all__ = ["TensorFlowFramework"]
