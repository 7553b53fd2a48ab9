"""Shared code of adapters that train with Keras, for any backend; imports Keras."""
