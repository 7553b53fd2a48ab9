"""Faults of loss scaling."""
