"""Ranks: meshes, replicas, sockets."""
