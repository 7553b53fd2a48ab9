"""Tests of techniques in combination, of ways, of shipped parts, and of generated programs."""
