"""Check the limits of the tree in LIMITS.toml: lines of Python by folder, of TOML and of the report's web files.

    python -m tools limits

Exit status 1 if something is larger: delete something, and do not raise the limit without naming what goes instead.
"""

import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
_WEB = frozenset({".js", ".css", ".html", ".jinja", ".j2"})


def main(root: Path = ROOT) -> int:
    """Print each size above its limit; return the exit status."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    python, sizes = Counter[str](), Counter[str]()
    for name in filter(lambda name: (root / name).is_file(), names.split("\0")):
        suffix, lines = Path(name).suffix, (root / name).read_bytes().count(b"\n")
        if suffix == ".py":
            sizes["files"] += 1
            python["all"] += lines
            python[name.partition("/")[0] if "/" in name else "."] += lines
        elif suffix == ".toml" or suffix in _WEB:
            sizes["toml" if suffix == ".toml" else "web"] += lines
    limits = tomllib.loads((root / "LIMITS.toml").read_text("utf-8"))
    larger = [
        f"{table} {name}: got {size}, want at most {limits[table].get(name, 0)}"
        for table, numbers in (("python", python), ("all", sizes))
        for name, size in numbers.items()
        if size > limits[table].get(name, 0)
    ]
    print(*larger, sep="\n", end="\n" if larger else "")
    return 1 if larger else 0


if __name__ == "__main__":
    sys.exit(main())
