"""Adapters: the contract, the registry, and one package for each adapter."""
