"""Plays a case, verb by verb, on runs of a framework or of the oracle, and notes what each verb left behind."""

from __future__ import annotations

import copy
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from conformance.judging.subject import Subject
from conformance.judging.verdict import cleaned, same_bits
from conformance.laws.members import NotesDrops
from conformance.laws.programs import (
    Accumulate,
    Apply,
    Break,
    CountBytes,
    Damage,
    DrawnBatch,
    DrawnCase,
    Feed,
    Gradients,
    OpenScope,
    Predict,
    Restore,
    RestoreDamaged,
    Save,
    StartAgain,
    Target,
    TraceLayers,
    Train,
    Verb,
)
from fixtures.arrays import Array
from fixtures.model import Batch
from fixtures.recipe import Precision
from frameworks.contract import Conventions, Trainer, Unsupported, Update
from frameworks.reference import ReferenceFramework
from frameworks.reference.arithmetic import Operations
from frameworks.reference.rounding import Rounding

Observation = dict[str, Array]
"""What can be seen after a verb: its result under "result/...", the run's state under the prefixes of `Trainer.state`.
"""


@dataclass(frozen=True)
class Play:
    """What a case did: one observation a verb that was played, None for the others."""

    observations: tuple[Observation | None, ...]

    @property
    def left_out(self) -> frozenset[int]:
        """Places of the verbs that were not played."""
        return frozenset(place for place, each in enumerate(self.observations) if each is None)


class PlayFailed(Exception):  # noqa: N818 - what is judged, not an error of ours
    """A verb raised; `place` is its place."""

    def __init__(self, place: int, verb: Verb, error: Exception) -> None:
        super().__init__(f"verb {place + 1}, {verb!r}, raised {type(error).__name__}: {cleaned(str(error))[:300]}")
        self.place = place


class Player(ABC):
    """Plays a case on the runs that `make` gives."""

    def __init__(self, case: DrawnCase) -> None:
        self.case = case
        self.trainer = self.make()

    @abstractmethod
    def make(self, weights: dict[str, Array] | None = None) -> Trainer:
        """A new run, from the model's first weights or from others."""

    @abstractmethod
    def save(self, slot: int) -> None:
        """Keeps the run's moment."""

    @abstractmethod
    def restore(self, slot: int, into: Target) -> None:
        """Goes on from a moment that was kept.

        Raises:
            NotPlayed: nothing was kept under this number.
        """

    def state(self) -> Observation:
        """The run's state."""
        return self.trainer.state()

    def play(self, left_out: frozenset[int] = frozenset()) -> Play:
        """All verbs but those at the places that are left out.

        Raises:
            PlayFailed: a verb raised.
        """
        return Play(tuple(self.steps(left_out)))

    def steps(self, left_out: frozenset[int] = frozenset()) -> Iterator[Observation | None]:
        """What can be seen after each verb, as it is played."""
        for place, verb in enumerate(self.case.program):
            try:
                if place in left_out:
                    raise NotPlayed
                result = self.do(verb)
                observation = {f"result/{name}": np.asarray(v) for name, v in result.items()} | self.state()
            except (Unsupported, NotPlayed):
                yield None
            except Exception as error:
                raise PlayFailed(place, verb, error) from error
            else:
                yield observation

    def do(self, verb: Verb) -> Mapping[str, object]:
        """One verb; returns what it gave."""
        trainer, drawn = self.trainer, self.case.drawn
        match verb:
            case Accumulate(micro=micro, items=items):
                return {"loss": trainer.accumulate(micro.batch(drawn), items)}
            case Apply():
                return _told(trainer.apply())
            case Train(micros=micros, cut=cut):
                return _told(trainer.update(self.case.window(micros, cut)))
            case Feed():
                return self.feed(verb)
            case Gradients(micros=micros):
                return {f"gradient.{name}": g for name, g in trainer.gradients(self.case.window(micros)).items()}
            case Predict(micro=micro, averaged=averaged):
                evaluate = trainer.predict_averaged if averaged else trainer.predict
                outputs = evaluate(micro.batch(drawn).inputs)
                return {f"output.{name}": value for name, value in outputs.items()}
            case Save(slot=slot):
                self.save(slot)
            case Restore(slot=slot, into=into):
                self.restore(slot, into)
            case RestoreDamaged():
                return {"refused": self.restore_damaged(verb)}
            case StartAgain(onward=onward):
                self.trainer = self.make(self.onward() if onward else None)
                return {f"setting.{name}": value for name, value in self.trainer.scaler_settings().items()}
            case TraceLayers(micro=micro):
                return self.traced(micro)
            case CountBytes(micro=micro):
                return {"bytes": trainer.saved_bytes(micro.batch(drawn))}
            case Break():
                return {"raised": self.breaks(verb)}
            case OpenScope():
                self.scope(verb)
        return {}

    def feed(self, verb: Feed) -> Mapping[str, object]:
        """Gradients from outside; what the last time gave. A new run begins where a second unscaling is refused."""
        parameters = self.case.drawn.model.weights(0)
        window = [given.gradients(parameters) for given in verb.window]
        poison = None if verb.poison is None else verb.poison.gradients(parameters)
        try:
            for _ in range(verb.times):
                update = self.trainer.feed(
                    *window, unscale_calls=verb.unscale_calls, poison=poison, abandon=verb.abandon
                )
        except RuntimeError:
            if (verb.unscale_calls or 0) < 2:
                raise
            self.trainer = self.make()  # what a refusal leaves behind is nobody's promise
            return {"refused": True}
        return _told(update)

    def traced(self, micro: DrawnBatch) -> Mapping[str, object]:
        """Outputs and gradients of every layer, and the parameters' gradients."""
        shown = self.trainer.trace(micro.batch(self.case.drawn))
        kinds = {"output": shown.outputs, "back": shown.gradients, "gradient": shown.parameters}
        return {f"{kind}.{path}": value for kind, values in kinds.items() for path, value in values.items()}

    def onward(self) -> dict[str, Array]:
        """The run's weights, in the formats that a model's first ones have."""
        model = self.case.drawn.model
        return {
            name: value.astype(np.float64).astype(model.parameter_format(name))
            for name, value in self.trainer.master_parameters().items()
        }

    def breaks(self, verb: Break) -> bool:
        """Whether a micro-batch whose inputs are a value too wide raises."""
        batch = verb.micro.batch(self.case.drawn)
        wider = np.concatenate([batch.inputs, batch.inputs[..., :1]], axis=-1)
        broken = Batch(wider, batch.targets, batch.mask)
        try:
            match verb.way:
                case "accumulate":
                    self.trainer.accumulate(broken, broken.items)
                case "update":
                    self.trainer.update((broken,))
                case "gradients":
                    self.trainer.gradients((broken,))
                case "predict":
                    self.trainer.predict(wider)
        except Unsupported:
            raise
        except Exception:
            return True
        return False

    @abstractmethod
    def restore_damaged(self, verb: RestoreDamaged) -> bool:
        """Whether a damaged save is refused.

        Raises:
            NotPlayed: nothing was kept under its number, or the damage is to a file that nothing depends on.
        """

    @abstractmethod
    def scope(self, verb: OpenScope) -> None:
        """Opens a precision scope and leaves it."""


class NotPlayed(Exception):  # noqa: N818 - not an error
    """This verb is not played."""


class SubjectPlayer(Player):
    """Plays a case on the framework under judgement; checkpoints are files below `folder`."""

    def __init__(self, subject: Subject, case: DrawnCase, folder: Path) -> None:
        self._subject, self._folder = subject, folder
        self._saved: dict[int, Path] = {}
        self._states: dict[int, Observation] = {}
        super().__init__(case)

    def make(self, weights: dict[str, Array] | None = None) -> Trainer:
        return self._subject.trainer(self.case.drawn.model, self.case.recipe, weights)

    def state(self) -> Observation:
        return self._subject.state(self.trainer)

    def save(self, slot: int) -> None:
        path = self._folder / str(slot)
        path.mkdir(exist_ok=True)
        waiting = bool(self.trainer.accumulator())
        try:
            self.trainer.save(path)
        except (RuntimeError, ValueError):
            if waiting:
                self._saved.pop(slot, None)
                raise NotPlayed from None
            raise
        self._saved[slot], self._states[slot] = path, self.trainer.state()

    def restore(self, slot: int, into: Target) -> None:
        if slot not in self._saved:
            raise NotPlayed
        target = self.trainer if into == "same" else self.make()
        micro = DrawnBatch(2, seed=77)
        batch = micro.batch(self.case.drawn)
        match into:
            case "used":
                target.update(self.case.window((micro,) * self.case.recipe.accumulation))
            case "predicted":
                target.predict(batch.inputs)
            case "stopped":
                target.accumulate(batch, batch.items * self.case.recipe.accumulation)
            case "skipped":
                gradients = {name: np.full_like(v, np.inf) for name, v in target.parameters().items()}
                target.feed(*[gradients] * self.case.recipe.accumulation)
        target.restore(self._saved[slot])
        self.trainer = target

    def restore_damaged(self, verb: RestoreDamaged) -> bool:
        if verb.slot not in self._saved:
            raise NotPlayed
        path = self._folder / f"damaged-{len(list(self._folder.iterdir()))}"
        shutil.copytree(self._saved[verb.slot], path)
        files = sorted(each for each in path.rglob("*") if each.is_file())
        damage(files[int(verb.file * len(files))], verb.damage)
        if self._loses_nothing(path, self._states[verb.slot]):
            raise NotPlayed
        try:
            self.trainer.restore(path)
        except ValueError:
            return True
        return False

    def _loses_nothing(self, path: Path, saved: Observation) -> bool:
        """Whether a new run takes all that was saved from files one of which is damaged, and so was not needed."""
        target = self.make()
        try:
            target.restore(path)
        except ValueError:
            return False
        state = target.state()
        return state.keys() == saved.keys() and all(same_bits(state[name], saved[name]) for name in saved)

    def scope(self, verb: OpenScope) -> None:
        framework = self._subject.framework
        try:
            with framework.autocast(Precision("O1", verb.format), enabled=verb.enabled):
                if verb.raises:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass


class OraclePlayer(Player):
    """Plays a case on the reference, which follows a framework's conventions; a moment is kept as a copy."""

    def __init__(
        self,
        conventions: Conventions,
        case: DrawnCase,
        rounding: Rounding | None,
        trainers: type[NotesDrops] = NotesDrops,
        operations: type[Operations] = Operations,
    ) -> None:
        self._framework = ReferenceFramework("cpu", conventions=conventions, rounding=rounding)
        self._framework.trainer_class, self._framework.operations_class = trainers, operations
        self._kept: dict[int, Trainer] = {}
        super().__init__(case)

    def make(self, weights: dict[str, Array] | None = None) -> Trainer:
        return self._framework.trainer(self.case.drawn.model, self.case.recipe, weights)

    def state(self) -> Observation:
        dropped = self.trainer.dropped if isinstance(self.trainer, NotesDrops) else 0
        return self.trainer.state() | {"window/dropped": np.array(dropped)}

    def save(self, slot: int) -> None:
        self._kept[slot] = copy.deepcopy(self.trainer)

    def restore(self, slot: int, into: Target) -> None:  # noqa: ARG002 - where it goes makes no difference
        if slot not in self._kept:
            raise NotPlayed
        self.trainer = copy.deepcopy(self._kept[slot])

    def restore_damaged(self, verb: RestoreDamaged) -> bool:
        if verb.slot not in self._kept:
            raise NotPlayed
        return True

    def scope(self, verb: OpenScope) -> None:
        """Nothing: no scope of the process reaches a run."""


def damage(path: Path, how: Damage) -> None:
    """Cuts a file in half, puts something else in its place, or takes it away."""
    match how:
        case "cut":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        case "foreign":
            path.write_bytes(b"not a checkpoint at all")
        case "missing":
            path.unlink()


def _told(update: Update) -> dict[str, object]:
    values = {field.name: getattr(update, field.name) for field in fields(update)}
    return {name: value for name, value in values.items() if value is not None}
