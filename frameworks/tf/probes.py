def probe(c, device, mode): return None
