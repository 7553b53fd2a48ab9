"""How often the comparison of times is wrong, on samples that were recorded on a real machine."""
