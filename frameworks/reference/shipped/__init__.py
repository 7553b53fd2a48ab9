"""Operations, layers, optimizers and functions of the reference that the suites try as they are."""
