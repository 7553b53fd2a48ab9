"""Resume: a checkpoint of an older version of the library."""

from pathlib import Path

from conformance.checks.api import Verdict, clause
from conformance.checks.checkpoints import SavedRun, find_difference, is_clear


@clause("resume.from-older-version")
def test_checkpoint_of_an_older_version(verdict: Verdict, tmp_path: Path, saved_run: SavedRun) -> None:
    wanted, resumed = saved_run.resume(tmp_path)
    for form in wanted:
        verdict.observe(form, "refused" if isinstance(resumed[form], str) else "resumed")
    for form, values in wanted.items():
        result = resumed[form]
        if isinstance(result, str):
            verdict.holds(is_clear(result), f"{form}: refused for its version or format", result, "", "obscure-refusal")
        else:
            verdict.equal(
                find_difference(result, values), "", f"{form}: the two updates after the load", "other-values"
            )
