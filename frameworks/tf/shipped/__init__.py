"""Operations, layers, optimizers and functions of TensorFlow that the suites try as they are."""
