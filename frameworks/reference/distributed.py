"""Simulated ranks of the reference, their trainers, and the failure of a rank.

A fault is a subclass of `ReferenceRankGroup` that overrides one of these methods:
    state       starting_weights, stream_seed, broadcast_buffers, schedule_steps, choose_saved_rank
    reduction   reduce, reduced_format, reduce_gradients, receive_gradients
    decision    decide (from each rank's own finding), norm (from shards), handle_missing_rank
    sharding    shard, gather, is_sharded, holds
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fixtures.arrays import Array, wider
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Ranks, Recipe
from frameworks.base import Arguments, BaseRankGroup
from frameworks.contract import Conventions, Gradients, RankFailed, Stop, Update
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.quantization.eight_bit_state import bytes_of, stored_moments
from frameworks.reference.training.decisions import Arrays, OpenWindow
from frameworks.reference.training.trainer import ReferenceTrainer


class LosesRanks(BaseRankGroup):
    """Ranks that synchronise in every call; a rank may stop, and is then missing in later calls.

    Attributes:
        missing: the ranks that have stopped.
    """

    missing: frozenset[int] = frozenset()

    def handle_missing_rank(self, rank: int) -> None:
        """Reaction to a missing rank: the call ends with an error.

        Raises:
            RankFailed: the rank is missing.
        """
        raise RankFailed(f"rank {rank} is missing", (rank,))

    def meet(self) -> None:
        """Synchronises all ranks, or reports the missing one."""
        for rank in sorted(self.missing):
            self.handle_missing_rank(rank)

    def collect_gradients(self, gradients: Sequence[Arrays]) -> list[Arrays]:
        """Each rank's gradients for a reduction; a missing rank contributes none."""
        self.meet()
        return [{} if rank in self.missing else own for rank, own in enumerate(gradients)]

    def fail_rank(self, windows: Sequence[Window], rank: int, how: Stop) -> tuple[Update | None, ...]:
        self.missing |= {rank}
        return self.update(windows)


Kinds = dict[str, int]
"""Counts or bytes by kind."""

COUNT = "company.json"
"""The file with the number of ranks that wrote a save."""


class RankCollectives(Protocol):
    """Collective operations of a rank."""

    model: Model
    ops: Operations
    counted: list[int]

    def norm(self, rank: int, names: Sequence[str]) -> float: ...

    def schedule_steps(self) -> int: ...

    def holds(self, rank: int) -> Kinds: ...


class RankTrainer(ReferenceTrainer):
    """One rank's run. It simulates with a whole copy of the state; the level defines the part that the rank holds.

    Attributes:
        agreed: the optimizers whose update all ranks skip, while an update is applied.
    """

    agreed: frozenset[int] | None = None

    def __init__(
        self,
        rank_group: RankCollectives,
        rank: int,
        recipe: Recipe,
        conventions: Conventions,
        weights: Mapping[str, Array],
    ) -> None:
        super().__init__(rank_group.model, recipe, conventions, rank_group.ops, weights)
        self.rank_group = rank_group
        self.rank = rank

    def judge(self) -> frozenset[int]:
        return super().judge() if self.agreed is None else self.agreed

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        if self.agreed is None:
            return super().gradient_norm(gradients)
        return self.rank_group.norm(self.rank, list(gradients))

    def advance_schedule(self) -> None:
        self.schedule += self.rank_group.schedule_steps()

    def _identity(self) -> str:
        return (
            f"{self.model.name} {self.model.layers} {self.model.sample} {self.recipe.replace(ranks=None, offload=None)}"
        )

    def own_finding(self) -> frozenset[int]:
        """Indices of the optimizers with non-finite gradients on this rank."""
        if self.window.latched is not None:
            return self.window.latched
        return super().judge() | self.window.scaled_overflow

    def resident_bytes(self) -> Kinds:
        return self.rank_group.holds(self.rank)

    def collectives(self) -> Kinds:
        counted, self.rank_group.counted[self.rank] = self.rank_group.counted[self.rank], 0
        return {"gradients": counted}


@cache
def rank_of(trainer_class: type[ReferenceTrainer]) -> type[RankTrainer]:
    """A class of rank trainers based on this trainer class, such as that of a fault."""
    return type(trainer_class.__name__, (RankTrainer, trainer_class), {"__module__": trainer_class.__module__})


def saved_count(file: Path) -> int:
    """The number of ranks that wrote a save.

    Raises:
        ValueError: the file is missing or not whole.
    """
    try:
        count = json.loads(file.read_text("utf-8"))["ranks"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} cannot be loaded: {error}") from error
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"{file} names no count of ranks")
    return count


class ReferenceRankGroup(LosesRanks):
    """Ranks in lockstep: all ranks complete each call before the next.

    Args:
        weights: initial weights of rank 0.
        trainer_class: additional base class of each rank's trainer.
    """

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        conventions: Conventions,
        ops: Operations,
        weights: Mapping[str, Array],
        trainer_class: type[ReferenceTrainer] = ReferenceTrainer,
    ) -> None:
        assert recipe.ranks is not None
        self.model = model
        self.recipe = recipe
        self.ranks: Ranks = recipe.ranks
        self.count = self.ranks.count
        self.ops = ops
        self.conventions = conventions
        self.counted = [0] * self.count
        self.windows: list[Arrays] = []
        rank_class = RankTrainer if issubclass(RankTrainer, trainer_class) else rank_of(trainer_class)
        seeded = [recipe.replace(seed=self.stream_seed(rank)) for rank in range(self.count)]
        self.trainers = [
            rank_class(self, rank, own, conventions, self.starting_weights(rank, weights))
            for rank, own in enumerate(seeded)
        ]
        self.first = self.trainers[0]

    # decisions: start

    def starting_weights(self, rank: int, weights: Mapping[str, Array]) -> Mapping[str, Array]:
        """Initial weights of a rank: those of rank 0."""
        return weights

    def stream_seed(self, rank: int) -> int:
        """Seed of a rank's dropout: the recipe's seed, since users seed all ranks alike."""
        return self.recipe.seed

    # decisions: reduction

    def reduce(self, name: str, parts: Sequence[Array]) -> Array:
        """A parameter's gradients of all ranks added up, in rank order, in the format of the reduction."""
        wanted = self.reduced_format(name)
        total = self.ops.rounding.round(parts[0], wanted)
        for part in parts[1:]:
            total = self.ops.rounding.round(total + self.ops.rounding.round(part, wanted), wanted)
        return total

    def reduced_format(self, name: str) -> str:
        """The format that a parameter's gradients are added up in over the ranks."""
        if self.ranks.reduce != "float32":
            return self.ranks.reduce
        return wider(self.first.accumulator_format(name), "float32")

    def reduce_gradients(self, gradients: Sequence[Arrays]) -> Arrays:
        """The window's gradients of all ranks; a parameter that only some ranks used counts as zero on the others."""
        gradients = self.collect_gradients(gradients)
        used = [name for name in self.first.masters if any(name in own for own in gradients)]
        for rank in range(self.count):
            self.counted[rank] += len(used)
        return {
            name: self.reduce(name, [own.get(name, np.zeros_like(self.first.masters[name])) for own in gradients])
            for name in used
        }

    def receive_gradients(self, rank: int, reduced: Arrays) -> Arrays:
        """The reduced gradients of a rank."""
        return dict(reduced)

    # decisions: the update

    def decide(self, findings: Sequence[frozenset[int]]) -> frozenset[int]:
        """Indices of the optimizers that every rank skips: those with non-finite gradients on any rank."""
        return frozenset[int]().union(*findings)

    def norm(self, rank: int, names: Sequence[str]) -> float:
        """The global norm that a rank computes, from the gradient shards of these parameters on all ranks."""
        whole = {name: self.gather_parameter(name, [own[name] for own in self.windows]) for name in names}
        return ReferenceTrainer.gradient_norm(self.first, whole)

    def schedule_steps(self) -> int:
        """Number of schedule steps after an applied update."""
        return 1

    def broadcast_buffers(self) -> None:
        """Synchronises running statistics before a forward pass: each rank takes rank 0's."""
        for trainer in self.trainers[1:]:
            trainer.statistics = {name: value.copy() for name, value in self.first.statistics.items()}

    # decisions: sharding

    def shard(self, value: Array, rank: int) -> Array:
        """The rows that a rank holds of an array: blocks of ceil(rows / shards), the last ones shorter or empty."""
        shards = self.ranks.shards
        rows = np.atleast_1d(value)
        length = -(-len(rows) // shards)
        index = rank % shards
        return rows[index * length : (index + 1) * length]

    def gather(self, shards: Sequence[Array], like: Array) -> Array:
        """The whole array, from the shards of one replica in rank order."""
        return np.concatenate([np.atleast_1d(part) for part in shards]).reshape(like.shape)

    def gather_parameter(self, name: str, copies: Sequence[Array]) -> Array:
        """The whole parameter; each row comes from the rank of the first replica that holds it."""
        if self.ranks.shards == 1:
            return copies[0]
        parts = [self.shard(copies[rank], rank) for rank in range(self.ranks.shards)]
        return self.gather(parts, self.first.masters[name])

    def is_sharded(self, kind: str) -> bool:
        """Returns whether the level shards state of this kind: "parameter", "gradient" or "optimizer"."""
        return kind in self.ranks.sharded

    def holds(self, rank: int) -> Kinds:
        """Bytes that a rank holds by kind."""
        run = self.trainers[rank]

        def size(kind: str, arrays: Mapping[str, Array], formats: Mapping[str, str]) -> int:
            return bytes_of(
                {n: self.shard(a, rank) if self.is_sharded(kind) else a for n, a in arrays.items()}, formats
            )

        formats = {name: run.accumulator_format(name) for name in run.masters}
        masters = {n: a for n, a in run.masters.items() if run.formats[n] != run.master_formats[n]}
        moments = sum(size("optimizer", part, run.master_formats) for part in stored_moments(run.slots))
        return {
            "parameter": size("parameter", run.values, run.formats),
            "gradient": size("gradient", run.masters, formats),
            "optimizer": moments + size("optimizer", masters, run.master_formats),
            "buffer": 4 * sum(value.size for value in run.statistics.values()),
        }

    # verbs

    def ask(self, verb: str, arguments: Sequence[Arguments]) -> tuple[Any, ...]:
        self.meet()
        return tuple(
            getattr(trainer, verb)(*own.arguments, **own.named)
            for trainer, own in zip(self.trainers, arguments, strict=True)
        )

    def update(self, windows: Sequence[Window]) -> tuple[Update, ...]:
        items = sum(batch.items for window in windows for batch in window)
        for batches in zip(*windows, strict=True):
            self._backward(batches, items)
        return self.apply()

    def accumulate(self, batches: Sequence[Batch], items: int) -> tuple[float, ...]:
        return self._backward(batches, items)

    def _backward(self, batches: Sequence[Batch], items: int) -> tuple[float, ...]:
        """Runs each rank's part of a micro-batch; reduces at once if each micro-batch is checked for overflow."""
        self.broadcast_buffers()
        if not self.alone:
            return tuple(t.accumulate(batch, items) for t, batch in zip(self.trainers, batches, strict=True))
        passes = [t.run_pass(batch, items) for t, batch in zip(self.trainers, batches, strict=True)]
        reduced = self.reduce_gradients([gradients for _, gradients in passes])
        for trainer, batch, (total, _) in zip(self.trainers, batches, passes, strict=True):
            trainer.window_takes(self.receive_gradients(trainer.rank, reduced), items, (total, batch.items))
        return tuple(
            t.reported_loss(total, batch.items)
            for t, batch, (total, _) in zip(self.trainers, batches, passes, strict=True)
        )

    @property
    def alone(self) -> bool:
        """True if each micro-batch is checked for overflow, so that its gradients are reduced at once."""
        drops = self.conventions.nonfinite_micro_batch == "drop-micro-batch"
        return self.conventions.scaler.counts == "micro-batches" or drops

    def gradients(self, windows: Sequence[Window]) -> tuple[Arrays, ...]:
        items = sum(batch.items for window in windows for batch in window)
        former = [(trainer.window, trainer.scaler) for trainer in self.trainers]
        counted = list(self.counted)
        for trainer in self.trainers:
            trainer.window = OpenWindow()
        try:
            for batches in zip(*windows, strict=True):
                self._backward(batches, items)
            self._reduce()
            return tuple(trainer.unscaled_gradients() for trainer in self.trainers)
        finally:
            self.counted = counted
            for trainer, (window, scaler) in zip(self.trainers, former, strict=True):
                trainer.window, trainer.scaler = window, scaler

    def apply_gradients(
        self,
        windows: Sequence[Sequence[Gradients]],
        *,
        unscale_calls: int | None = None,
        inject: Sequence[Gradients | None] | None = None,
        discard: bool = False,
    ) -> tuple[Update, ...]:
        length = len(windows[0])
        for fed in zip(*windows, strict=True):
            scaled = [
                t.backpropagate_gradients(own, length * self.count) for t, own in zip(self.trainers, fed, strict=True)
            ]
            if self.alone:
                reduced = self.reduce_gradients(scaled)
                scaled = [self.receive_gradients(rank, reduced) for rank in range(self.count)]
            for trainer, gradients in zip(self.trainers, scaled, strict=True):
                trainer.window_takes(gradients, length)
        self._reduce()
        injections = list(inject or [None] * self.count)
        for trainer in self.trainers:
            calls = 1 if (inject is not None or discard) and unscale_calls is None else unscale_calls or 0
            trainer.unscale_manually(calls)
            self._inject(trainer, injections[trainer.rank] or {})
        return self.discard() if discard else self._apply()

    def _inject(self, trainer: RankTrainer, inject: Gradients) -> None:
        """Adds `inject` to the part of the reduced gradients that a rank holds."""
        for name, value in inject.items():
            if value is None:
                continue
            whole = np.zeros_like(self.first.masters[name])
            rows = np.atleast_1d(whole)
            values = np.atleast_1d(np.asarray(value, np.float64))
            indices = (
                self.shard(np.arange(len(rows)), trainer.rank) if self.is_sharded("gradient") else np.arange(len(rows))
            )
            rows[indices] = values[indices]
            trainer.accumulate_gradient(name, rows.reshape(whole.shape))

    def discard(self) -> tuple[Update, ...]:
        """Ends the window without a step on all ranks, with a shared overflow decision."""
        self._agree()
        try:
            return tuple(trainer.discard() for trainer in self.trainers)
        finally:
            self._part()

    def apply(self) -> tuple[Update, ...]:
        if not self.first.window.micro_batches:
            raise RuntimeError("the window is empty: accumulate a micro-batch first")
        if self.first.window_ended():
            self._reduce()
        return self._apply()

    def _reduce(self) -> None:
        """Reduces the gradients of all ranks' windows."""
        if self.alone:
            return
        reduced = self.reduce_gradients([trainer.window.gradients for trainer in self.trainers])
        for trainer in self.trainers:
            trainer.window.gradients = self.receive_gradients(trainer.rank, reduced)

    def _agree(self) -> None:
        with np.errstate(all="ignore"):
            for trainer in self.trainers:
                if not trainer.window.unscaled:
                    trainer.unscale_gradients()
            agreed = self.decide([trainer.own_finding() for trainer in self.trainers])
        self.windows = [dict(trainer.window.gradients) for trainer in self.trainers]
        for trainer in self.trainers:
            trainer.agreed = agreed
            if trainer.window.latched is not None:
                trainer.window.latched = agreed

    def _part(self) -> None:
        for trainer in self.trainers:
            trainer.agreed = None

    def _apply(self) -> tuple[Update, ...]:
        if not self.first.window_ended():
            return tuple(trainer.apply() for trainer in self.trainers)
        self._agree()
        steps = self.first.steps
        try:
            updates = [trainer.apply() for trainer in self.trainers]
        finally:
            self._part()
        if self.first.steps > steps:
            self._gather_state()
        return tuple(updates)

    def _gather_state(self) -> None:
        """Gathers the updated weights from all shards on every rank."""
        runs = self.trainers
        groups: list[list[MutableMapping[str, Array]]] = [[t.masters for t in runs], [t.averages for t in runs]]
        groups += [[t.slots[slot] for t in runs] for slot in self.first.slots]
        for copies in groups if self.ranks.level != "replicated" else []:
            for name in copies[0]:
                whole = self.gather_parameter(name, [own[name] for own in copies])
                for own in copies:
                    own[name] = whole.copy()
        for trainer in self.trainers:
            trainer.sync_masters()

    # save and restore

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        for trainer in self.trainers:
            trainer.save(path / f"rank-{trainer.rank}")
        (path / COUNT).write_text(json.dumps({"ranks": self.count}), encoding="utf-8")

    def restore(self, path: Path) -> None:
        saved = saved_count(path / COUNT)
        own = [trainer.save_state() for trainer in self.trainers]
        try:
            for rank in range(saved):
                self.trainers[rank % self.count].restore(path / f"rank-{rank}")
            for trainer in self.trainers:
                trainer.restore(path / f"rank-{self.choose_saved_rank(trainer.rank, saved)}")
            if saved != self.count and self.first.window.micro_batches:
                raise ValueError(f"{path}: saved inside a window by {saved} ranks, and these are {self.count}")
        except Exception:
            for trainer, state in zip(self.trainers, own, strict=True):
                trainer.load_state(state)
            raise

    def choose_saved_rank(self, rank: int, saved: int) -> int:
        """The saved rank from which a rank continues."""
        return rank % saved
