"""Operations, layers, optimizers and functions of PyTorch that the suites try as they are."""
