"""Effect of 8-bit loading on a real sentence encoder."""
