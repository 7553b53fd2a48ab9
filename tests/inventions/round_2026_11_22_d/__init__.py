"""The round of 2026-11-22, d."""
