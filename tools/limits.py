"""Whether the tree is as small as LIMITS.toml says: lines of Python by folder, of TOML and of the report's web files.

    python -m tools limits

Exit status 1 if something is larger: delete something, and do not raise the limit without naming what goes instead.
"""

import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
_WEB = frozenset({".js", ".css", ".html", ".jinja", ".j2"})


def count(root: Path, names: Iterable[str]) -> dict[str, dict[str, int]]:
    """The sizes that LIMITS.toml bounds: `python` by top-level folder and in all, `files`, `toml` and `web`."""
    python, sizes = Counter[str](), Counter[str]()
    for name in names:
        path = root / name
        if not path.is_file():
            continue
        kind = "python" if path.suffix == ".py" else "toml" if path.suffix == ".toml" else "web"
        if kind == "web" and path.suffix not in _WEB:
            continue
        lines = path.read_bytes().count(b"\n")
        sizes[kind] += lines
        if kind == "python":
            sizes["files"] += 1
            python[name.partition("/")[0] if "/" in name else "."] += lines
    return {
        "python": {**python, "all": sizes["python"]},
        "all": {kind: sizes[kind] for kind in ("files", "toml", "web")},
    }


def main(root: Path = ROOT) -> int:
    """Print each size above its limit; return the exit status."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    sizes = count(root, names.split("\0"))
    limits = tomllib.loads((root / "LIMITS.toml").read_text("utf-8"))
    larger = [
        f"{table} {name}: got {size}, want at most {limits[table].get(name, 0)}"
        for table, numbers in sizes.items()
        for name, size in numbers.items()
        if size > limits[table].get(name, 0)
    ]
    print(*larger, sep="\n", end="\n" if larger else "")
    return 1 if larger else 0


if __name__ == "__main__":
    sys.exit(main())
