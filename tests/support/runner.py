"""A runner of GitHub's for the tests of the action's scripts: its folders, variables and programs."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.suite_runs import ROOT, environment, hang_limit

ACTION = ROOT / ".github" / "actions" / "conformance"


@dataclass
class Runner:
    """A runner's folders and variables, and what a step wrote."""

    folder: Path
    status: int = 0
    log: str = ""
    given: dict[str, str] = field(default_factory=dict)

    def step(self, script: str, **variables: str | Path) -> dict[str, str]:
        """Runs a script of the action; returns its outputs."""
        output = self.folder / "output"
        output.write_text("")
        changes = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_ACTION_PATH": str(ACTION),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
            "GITHUB_WORKSPACE": str(self.folder),
            "GITHUB_REPOSITORY": "owner/repo",
            "RUNNER_TEMP": str(self.folder),
            "FAKE_LOG": str(self.folder / "log"),
            "FAKE_COMMENTS": str(self.folder / "comments.json"),
            "SUITE": str(self.folder / "suite"),
            "OUT": str(self.folder / "out"),
            "PYTHON": sys.executable,
        }
        changes |= {name: str(value) for name, value in (self.given | variables).items()}
        done = subprocess.run(
            ["bash", str(ACTION / script)],
            env=environment(**changes),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=hang_limit(),
            check=False,
        )
        self.status, self.log = done.returncode, done.stdout + done.stderr
        return dict(line.split("=", 1) for line in output.read_text().splitlines())

    def play(self, name: str, program: str) -> None:
        """Puts a program on the path."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(program)
        path.chmod(0o755)

    @property
    def asked(self) -> list[Any]:
        """What the programs that are played were asked."""
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    @property
    def summary(self) -> str:
        """The job's summary."""
        return (self.folder / "summary").read_text("utf-8")
