"""Tests of offload."""
