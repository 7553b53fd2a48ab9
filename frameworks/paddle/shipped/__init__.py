"""Operations, layers, optimizers and functions of Paddle that the suites try as they are."""
