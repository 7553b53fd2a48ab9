"""The wheel's `conformance/__init__.py`: puts the suite's tree, which lies next to it, first on the import path.

So an installation has one importable name, and `fixtures`, `frameworks` and `results` are those of the suite in its own
process and in those that it starts, whatever folders the user's project has.
"""

import os
import sys
from pathlib import Path

_TREE = str(Path(__file__).parent / "tree")
__path__ = [os.path.join(_TREE, "conformance")]
sys.path.insert(0, _TREE)
os.environ["PYTHONPATH"] = os.pathsep.join([_TREE, *filter(None, [os.environ.get("PYTHONPATH")])])
