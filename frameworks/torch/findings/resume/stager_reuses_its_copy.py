"""Two running saves that share one DefaultStager: the first file holds the values of the second call."""

import sys
import tempfile
import threading

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions


class Writer(checkpoint.FileSystemWriter):
    def write_data(self, *args, **named):
        second_called.wait(60)
        return super().write_data(*args, **named)


second_called = threading.Event()
stager = DefaultStager(StagingOptions(False, False, False, False))
folder, value, futures = (temporary := tempfile.TemporaryDirectory()).name, torch.ones(4), []
for step in (1, 2):
    value.fill_(step)
    writer = Writer(f"{folder}/{step}")
    futures.append(checkpoint.async_save({"value": value}, storage_writer=writer, async_stager=stager, no_dist=True))
second_called.set()
_ = [future.result() for future in futures]
checkpoint.load({"value": value}, checkpoint_id=f"{folder}/1", no_dist=True)
print("expected: the first file holds 1.0")
print(f"seen: the first file holds {float(value[0])}")
sys.exit(int(float(value[0]) != 1.0))
