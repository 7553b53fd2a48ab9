"""What to install for a framework, and how: pinned versions, locks, the companions of another version, pip and uv."""
