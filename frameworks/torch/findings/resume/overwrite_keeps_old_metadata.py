"""A save over an older one that ends before its metadata: the old metadata describe the new data, which load."""

import sys
import tempfile

import torch
from torch.distributed import checkpoint


class Writer(checkpoint.FileSystemWriter):
    def finish(self, *args, **named):
        raise OSError("the disk is full")


folder, value = (temporary := tempfile.TemporaryDirectory()).name, torch.ones(4)
checkpoint.save({"value": value}, checkpoint_id=folder, no_dist=True)
try:
    checkpoint.save({"value": value * 2}, storage_writer=Writer(folder), no_dist=True)
except BaseException as error:
    print(f"the second save fails: {type(error).__name__}")
try:
    checkpoint.load({"value": value}, checkpoint_id=folder, no_dist=True)
    seen = str(float(value[0]))
except BaseException as error:
    seen = type(error).__name__
print("expected: the load gives 1.0 or is refused")
print(f"seen: the load gives {seen}")
sys.exit(int(seen == "2.0"))
