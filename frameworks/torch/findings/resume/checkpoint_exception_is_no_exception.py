"""`except Exception` does not catch the error of a save: CheckpointException derives from BaseException."""

import sys

from torch.distributed.checkpoint import CheckpointException

seen = issubclass(CheckpointException, Exception)
print("expected: issubclass(CheckpointException, Exception) is True")
print(f"seen: issubclass(CheckpointException, Exception) is {seen}")
sys.exit(int(not seen))
