"""Engines: where the cells of a sweep run. An engine queues and places them; the cell's own process does the rest."""
