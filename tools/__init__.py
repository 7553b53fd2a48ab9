"""Tools that develop the suite: faults, reviews, documentation, benchmarks. `python -m tools` lists them."""
