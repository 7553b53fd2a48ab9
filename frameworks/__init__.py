"""Adapters: the contract, the registry, and one package for each adapter."""

from frameworks.former_names import install

install()
