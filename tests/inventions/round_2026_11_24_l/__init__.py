"""A round of invention from 24 November 2026: 28 faults, half of them from bug reports of frameworks."""
