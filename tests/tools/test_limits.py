"""The limits of the tree's size."""

import subprocess
from pathlib import Path

import pytest

from tools import limits

LIMITS = '[python]\na = 2\n"." = 1\nall = 3\n[all]\nfiles = 2\ntoml = 100\nweb = 1\n'


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a/b.py": "1\n2\n", "setup.py": "1\n"}, ""),
        ({"a/b.py": "1\n2\n3\n"}, "python a: got 3, want at most 2\n"),
        ({"c/b.py": "1\n"}, "python c: got 1, want at most 0\n"),
        ({"a/b.py": "", "a/c.py": "", "a/d.py": ""}, "all files: got 3, want at most 2\n"),
        ({"a/b.js": "1\n2\n"}, "all web: got 2, want at most 1\n"),
    ],
)
def test_main_prints_each_size_above_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str], message: str
) -> None:
    for name, text in {**files, "LIMITS.toml": LIMITS}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "."], check=True)
    assert limits.main(tmp_path) == (1 if message else 0)
    assert capsys.readouterr().out == message
