"""End-to-end scenarios from publications and guides: a model, data, and recipes to compare."""
