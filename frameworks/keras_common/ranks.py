"""Runs of several ranks, all of them in one process."""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from frameworks.base import Arguments, LossLedger
from frameworks.contract import Capability, Gradients, Update
from frameworks.keras_common.micro_batches import KerasMicroBatch
from frameworks.keras_common.run import KerasRun


class RunOfRanks(KerasRun):
    """A run of all ranks, in front of a backend's run. Methods with arguments take one for each rank.

    Attributes:
        ledgers: the open window of each rank.
    """

    ledgers: list[LossLedger[KerasMicroBatch]]

    @abstractmethod
    def by_rank(self, verb: str) -> tuple[Any, ...]:
        """Result of a method without arguments for each rank, which reads the rank's own copies of variables."""

    @abstractmethod
    def accumulate_parts(self, parts: Sequence[Batch]) -> tuple[float, ...]:
        """`accumulate` with each rank's part of a micro-batch."""

    @abstractmethod
    def feed_part(self, parts: Sequence[Gradients]) -> None:
        """`apply_gradients` of a micro-batch with each rank's gradients."""

    @abstractmethod
    def gradients_of_parts(self, windows: Sequence[Window]) -> tuple[dict[str, Array], ...]:
        """`gradients` of the ranks' windows together, as each has them."""

    @abstractmethod
    def predictions(self, inputs: Array) -> tuple[dict[str, Array], ...]:
        """`predict` by each rank."""

    def update_parts(self, windows: Sequence[Window]) -> tuple[Update, ...]:
        """`update` with each rank's window."""
        self.check_length(len(windows[0]))
        for parts in zip(*windows, strict=True):
            self.accumulate_parts(parts)
        return self.updates()

    def feed_parts(self, windows: Sequence[Sequence[Gradients]]) -> tuple[Update, ...]:
        """`apply_gradients` with each rank's window."""
        self.check_length(len(windows[0]))
        with self.scope():
            for parts in zip(*windows, strict=True):
                self.feed_part(parts)
        return self.updates()

    def entered(self, micro_batches: Iterable[KerasMicroBatch]) -> tuple[float, ...]:
        """Records the result of a micro-batch by rank."""
        pairs = zip(self.ledgers, micro_batches, strict=True)
        return tuple(ledger.add(micro, ledger.items + micro.items) for ledger, micro in pairs)

    def updates(self) -> tuple[Update, ...]:
        """`apply`, with the result by rank."""
        return tuple(self.ended(ledger) for ledger in self.ledgers)


class KerasRanks:
    """The ranks of a run: joins their arguments and splits their results.

    Args:
        read: methods whose result each rank reads from its own copies.
    """

    def __init__(self, run: RunOfRanks, read: Collection[str]) -> None:
        self.run, self.read = run, read

    def ask(self, verb: str, given: Sequence[Arguments]) -> tuple[Any, ...]:
        """Calls a method with each rank's arguments; returns one result for each.

        Raises:
            Unsupported: RANKS_COLLECTIVES, EXPLICIT_UNSCALE, or what the run itself does not do.
        """
        if verb in self.read:
            return self.run.by_rank(verb)
        first = [each.arguments[0] for each in given if each.arguments]
        match verb:
            case "update_share":
                return self.run.update_parts(first)
            case "accumulate":
                return self.run.accumulate_parts(first)
            case "apply":
                return self.run.updates()
            case "gradients_share":
                return self.run.gradients_of_parts(first)
            case "apply_gradients":
                named = given[0].named
                injected = any(own.named["inject"] is not None for own in given)
                if named["unscale_calls"] is not None or named["discard"] or injected:
                    raise self.run.refusal(Capability.EXPLICIT_UNSCALE)
                return self.run.feed_parts([own.arguments for own in given])
            case "predict":
                return self.run.predictions(first[0])
            case "collectives":
                raise self.run.refusal(Capability.RANKS_COLLECTIVES)
            case _:
                return (getattr(self.run, verb)(*given[0].arguments, **given[0].named),) * len(given)
