"""How each framework does it: the contract, the registry, and one package an adapter."""
