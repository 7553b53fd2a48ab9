"""Adapters: the contract, the registry, and one package for each adapter."""

from frameworks.version_1 import install

install()
