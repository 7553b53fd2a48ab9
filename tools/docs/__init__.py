"""The generated pages of README and docs."""
