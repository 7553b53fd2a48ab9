"""Faults of single places, histories and sizes: attention, ids, masks, saves, averages, ranks and quantizers."""
