"""The round of 2026-11-23, h."""
