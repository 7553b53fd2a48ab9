"""What loading in eight bits does to a real sentence encoder."""
