"""The ladder of docs/adapters.md: how many tests each step of a new adapter brings.

    python -m tools ladder [core|all]

judges the reference as if it were an adapter that offers the capabilities of the first steps alone.
"""

import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from conformance.runner.jobs import ROOT
from fixtures.recipe import Recipe
from frameworks.contract import Attempt, Capability
from frameworks.reference.framework import ReferenceFramework
from results.record.model import Outcome
from results.record.reading import load

STEPS: Mapping[str, tuple[str, ...]] = {
    "the template": (),
    "a trainer with SGD and Adam in float32": ("trainer.feed",),
    "checkpoints": ("trainer.checkpoint", "trainer.live-state", "trainer.load-order"),
    "accumulation and clipping": ("accumulation", "optimizer.clip", "optimizer.missing-gradients", "trainer.step-hook"),
    "schedules, groups, frozen parameters, averages": (
        *("optimizer.schedule", "optimizer.plateau", "optimizer.group", "optimizer.decay-excluded"),
        *("optimizer.freeze", "optimizer.frozen", "optimizer.average"),
    ),
    "other optimizers and their options": ("optimizer.",),
    "precision scopes": ("precision.", "autocast."),
    "loss scaling": ("scaling.",),
    "recomputation and offload": ("recompute", "offload.", "trainer.saved-bytes"),
    "structure and traces": ("model.layer-reuse", "model.tied", "model.user", "model.function", "trainer.trace"),
    "number formats and quantization": ("formats.", "quantization.", "adapters."),
    "ranks": ("ranks.",),
    "what the framework ships": ("",),
}
"""Steps by what they add, with the beginnings of the names of their capabilities."""

_LAST = ("optimizer.shipped", "optimizer.adam-8bit")
"""Capabilities of the last step whose names begin as those of an earlier one."""

JUDGED = (Outcome.PASS, Outcome.FAIL, Outcome.KNOWN, Outcome.ABSTAIN)


class Ladder(ReferenceFramework):
    """The reference with the capabilities of the first steps; a mode is the number of steps."""

    modes = tuple(str(number) for number in range(1, len(STEPS) + 1))

    def supported_capabilities(self) -> Collection[Capability]:
        names = [name for step in list(STEPS.values())[: int(self.mode)] for name in step]
        excluded = () if int(self.mode) == len(STEPS) else _LAST
        every = super().supported_capabilities()
        return [name for name in every if name.startswith(tuple(names)) and name not in excluded]

    def refusals(self) -> Mapping[Capability, str]:
        return {}

    def require_recipe(self, recipe: Recipe) -> None:
        if not self.declares(Capability.FEED).supported:
            raise self.refusal(Capability.FEED)
        super().require_recipe(recipe)

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {}


def main(argv: Sequence[str]) -> int:
    """Prints the table; 1 if a test failed, 2 if the arguments are wrong."""
    if argv not in ([], ["core"], ["all"]):
        print(f"got {' '.join(argv)}, want core or all", file=sys.stderr)
        return 2
    tests, before, failed = argv[0] if argv else "core", 0, False
    print("| step | tests judged | more |\n|---|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        for mode, step in zip(Ladder.modes, STEPS, strict=True):
            path = Path(folder) / f"{mode}.json"
            command = ["conformance", "run", "tools.ladder:Ladder", f"--mode={mode}", f"--tests={tests}"]
            command = [sys.executable, "-m", *command, f"--record={path}"]
            subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
            verdicts = load(path).verdicts
            count = sum(verdict.outcome in JUDGED for verdict in verdicts)
            failed = failed or any(verdict.outcome.bad for verdict in verdicts)
            print(f"| {step} | {count} | {count - before} |", flush=True)
            before = count
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
