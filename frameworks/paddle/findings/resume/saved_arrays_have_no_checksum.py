"""paddle.load takes a file in which a byte of an array has changed."""

import sys
import tempfile

import numpy as np
import paddle

folder = tempfile.TemporaryDirectory()
path = f"{folder.name}/weights.pdparams"
paddle.save({"w": paddle.ones([4096])}, path)
with open(path, "rb") as file:
    content = bytearray(file.read())
content[len(content) // 2] ^= 0x55
with open(path, "wb") as file:
    file.write(content)
try:
    different = int((np.array(paddle.load(path)["w"]) != 1.0).sum())
    seen = f"loaded, {different} of 4096 values differ"
except Exception as error:
    seen = f"refused ({type(error).__name__})"
print("expected: refused")
print(f"seen: {seen}")
sys.exit("refused" not in seen)
