"""Tools that develop the suite: faults, sabotage, reviews, documentation, benchmarks. `python -m tools` lists them."""
