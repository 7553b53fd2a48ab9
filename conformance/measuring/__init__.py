"""Bytes and times, taken so that what disturbs the machine disturbs both sides."""
