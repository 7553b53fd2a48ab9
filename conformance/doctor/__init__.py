"""What a framework needs before a run: Python, packages, driver, device; one step after the other."""
