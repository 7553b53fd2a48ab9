"""Operations, layers, optimizers and functions of JAX that the suites try as they are."""
