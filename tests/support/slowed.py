"""The reference with one update in twenty made twice, which is five percent more work."""

from __future__ import annotations

from typing import Any

from frameworks.reference import ReferenceFramework

EVERY = 20


class SlowedReference(ReferenceFramework):
    """The reference, five percent slower."""

    def trainer(self, *arguments: Any, **options: Any) -> Any:
        """A run whose every twentieth update is made twice."""
        trainer = super().trainer(*arguments, **options)
        update, done = trainer.update, 0

        def slowed(window: Any) -> Any:
            nonlocal done
            done += 1
            if done % EVERY == 0:
                update(window)
            return update(window)

        trainer.update = slowed
        return trainer
