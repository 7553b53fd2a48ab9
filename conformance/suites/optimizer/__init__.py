"""Tests of optimizers, schedules and averages of weights."""
