"""What loading in 8 bits does to a real sentence encoder."""
