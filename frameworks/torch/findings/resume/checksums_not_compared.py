"""torch.save writes a checksum of every tensor, and torch.load does not compare it."""

import io
import sys
import zipfile

import torch

file = io.BytesIO()
torch.save({"weight": torch.ones(4)}, file)
content = bytearray(file.getvalue())
content[content.index(torch.ones(4).numpy().tobytes())] ^= 0x55
broken = zipfile.ZipFile(io.BytesIO(content)).testzip()
try:
    seen = f"loaded {torch.load(io.BytesIO(content), weights_only=True)['weight'].tolist()}"
except RuntimeError as error:
    seen = f"refused: {error}"

print(f"expected: refused, as the checksum of {broken} is wrong")
print(f"seen: {seen}")
sys.exit(1 if seen.startswith("loaded") else 0)
