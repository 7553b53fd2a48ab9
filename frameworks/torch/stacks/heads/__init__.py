"""Training of models of other libraries: transformers' heads, and plain modules."""
