"""Tests of training on several ranks: updates, decisions, state, saves and failures."""
