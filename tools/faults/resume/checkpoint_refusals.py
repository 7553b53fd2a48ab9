"""Faults of checkpoints that should be refused: damaged, of another format, or with values that nothing takes."""

from __future__ import annotations

from pathlib import Path

from fixtures.recipe import Precision
from frameworks.reference.core import checkpoint
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/mosaicml/composer/pull/1376", "resume.unclaimed-is-refused")
class DropsWhatHasNoReceiver(ReferenceTrainer):
    """A saved component that the run has no place for is left out in silence, and one that is not saved stays."""

    def restore(self, path: Path) -> None:
        own = self.save_state()
        saved = checkpoint.read(path, "", {})
        self.load_state({n: saved[n] if n in saved and saved[n].shape == v.shape else v for n, v in own.items()})

    def _identity(self) -> str:
        return ""


@fault("https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1647", "resume.other-format-is-refused")
class FormatsAreNotRecorded(ReferenceTrainer):
    """A checkpoint does not say in which formats it is to be read."""

    def _identity(self) -> str:
        return f"{self.model.name} {self.model.layers} {self.model.sample} {self.recipe.replace(precision=Precision())}"


@fault("https://github.com/ScrollPrize/villa/pull/1475", "resume.truncated-file", "resume.altered-file")
class DamageIsIgnored(ReferenceTrainer):
    """A file that cannot be read is taken for no file, and the run goes on with what it has."""

    def restore(self, path: Path) -> None:
        try:
            super().restore(path)
        except ValueError:
            return


@fault("https://github.com/ScrollPrize/villa/pull/1475", "resume.truncated-file", "resume.refusal-changes-nothing")
class RefusalComesTooLate(ReferenceTrainer):
    """The optimizer is reset before it is known whether the file can be read."""

    def restore(self, path: Path) -> None:
        self.counts = dict.fromkeys(self.counts, 0)
        super().restore(path)
