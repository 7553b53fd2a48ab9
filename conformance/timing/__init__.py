"""Measures bytes and times, interleaved so that disturbances affect both sides."""
