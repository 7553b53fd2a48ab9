"""Commands that judge and compare versions: sweeps, history, bisection, races."""
