"""Measurement of bytes and times; the two sides of a comparison take turns, so that disturbances affect both."""
