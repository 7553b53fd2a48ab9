"""Installation of frameworks: pinned versions, locks, companions of other versions, pip and uv."""
