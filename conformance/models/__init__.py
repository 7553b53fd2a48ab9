"""Models without an adapter: whether accumulation, recomputation, precision scopes and resuming leave their training as
it is."""
