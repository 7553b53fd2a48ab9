"""What was seen: records of runs, the crash-safe journal that they are written through, tables drawn from them."""
