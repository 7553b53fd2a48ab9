"""Checkpoints of save_state_dict name classes of their version: a module that moved, and fields that came later."""

import pickle
import sys
import tempfile
from pathlib import Path

import paddle

metadata = Path((temporary := tempfile.TemporaryDirectory()).name, "0.metadata")
paddle.distributed.save_state_dict({"x": paddle.ones([2])}, str(metadata.parent))
written = pickle.loads(metadata.read_bytes())
for index in written.storage_metadata:
    for later in ("local_shape", "replica_id"):
        index.__dict__.pop(later, None)
olds = {"3.1": b"cpaddle.distributed.checkpoint.metadata\nMetadata\n.", "3.2": pickle.dumps(written)}
seen = []
for version, content in olds.items():
    metadata.write_bytes(content)
    try:
        paddle.distributed.load_state_dict({"x": paddle.zeros([2])}, str(metadata.parent))
    except Exception as error:
        seen.append(f"{type(error).__name__} for {version}")
print("expected: metadata as Paddle 3.1 and 3.2 wrote it is read, or refused for its version")
print(f"seen: {', '.join(seen) or 'read'}")
sys.exit({"ModuleNotFoundError for 3.1", "KeyError for 3.2"} & {*seen} != set())
