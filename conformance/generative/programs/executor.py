"""Plays a case, verb by verb, on runs of a framework or of the oracle, and observes the state after each verb."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

import numpy as np

from conformance.checks.evidence import clean_message
from conformance.generative.programs.case import (
    Accumulate,
    Apply,
    ApplyGradients,
    CountBytes,
    DamageOffloaded,
    GeneratedBatch,
    GeneratedCase,
    Gradients,
    OpenScope,
    Predict,
    Restore,
    RestoreDamaged,
    Save,
    StartAgain,
    TraceLayers,
    Train,
    Verb,
    WrongWidth,
    cut_otherwise,
    step_text,
)
from conformance.search.properties import Observation
from fixtures.arrays import Array
from fixtures.model import Batch, Window
from frameworks.contract import Trainer, Unsupported, Update


@dataclass(frozen=True)
class Play:
    """The run of a case: one observation for each verb that was played, None for the others."""

    observations: tuple[Observation | None, ...]

    @property
    def left_out(self) -> frozenset[int]:
        """Places of the verbs that were not played."""
        return frozenset(index for index, observation in enumerate(self.observations) if observation is None)


class PlayFailed(Exception):
    """A verb raised, changed arrays that had been read, loaded another state than was saved, or made ranks disagree.

    Attributes:
        name: "raised", "aliased", "loaded" or "apart".
    """

    def __init__(self, index: int, verb: Verb, what: str, name: str = "raised") -> None:
        super().__init__(f"step {index + 1}, {step_text(verb)}, {what}")
        self.place, self.name = index, name

    @classmethod
    def by(cls, index: int, verb: Verb, error: Exception) -> PlayFailed:
        """The failure of a verb that raised."""
        return cls(index, verb, f"raised {type(error).__name__}: {clean_message(str(error))[:300]}")


class LoadMismatch(Exception):
    """The state after a load differs from the saved one."""


class RankMismatch(Exception):
    """A rank's state differs from that of rank 0."""


class Executor(ABC):
    """Plays a case on runs made by `make`.

    Attributes:
        recipe: of the run that is played on; another one than the case's after a load under another.
    """

    def __init__(self, case: GeneratedCase) -> None:
        self.case, self.recipe = case, case.recipe
        self.trainer = self.make()

    @abstractmethod
    def make(self, weights: dict[str, Array] | None = None) -> Trainer:
        """A new run, from the model's first weights or from others."""

    @abstractmethod
    def save(self, slot: int) -> None:
        """Saves the run under a slot."""

    @abstractmethod
    def restore(self, verb: Restore) -> None:
        """Restores the run saved under a slot.

        Raises:
            NotPlayed: nothing was kept under this number.
        """

    def state(self) -> Observation:
        """The run's state."""
        return self.trainer.state()

    def batch(self, micro: GeneratedBatch) -> Batch:
        """The data of a micro-batch."""
        batch = self.laid_out(micro.batch(self.case.drawn), micro.seed)
        self.lend([batch.inputs, *batch.targets.values(), *([] if batch.mask is None else [batch.mask])])
        return batch

    def laid_out(self, batch: Batch, seed: int) -> Batch:
        """The data in the memory layout that the run gets."""
        return batch

    def window(self, micros: tuple[GeneratedBatch, ...], cut: tuple[int, ...] = ()) -> Window:
        """The data of a window."""
        return cut_otherwise(tuple(self.batch(micro) for micro in micros), cut)

    @abstractmethod
    def lend(self, arrays: Iterable[Array]) -> None:
        """Notes that the next verb gets these arrays."""

    @abstractmethod
    def take_back(self) -> None:
        """Reclaims the arrays given to the verb that has just returned."""

    def play(self, left_out: frozenset[int] = frozenset()) -> Play:
        """All verbs but those at the places that are left out.

        Raises:
            PlayFailed: a verb raised.
        """
        return Play(tuple(self.steps(left_out)))

    def steps(self, left_out: frozenset[int] = frozenset()) -> Iterator[Observation | None]:
        """The observation after each verb, as it is played."""
        for index, verb in enumerate(self.case.program):
            try:
                if index in left_out:
                    raise NotPlayed
                result = self.do(verb)
                self.take_back()
                observation = {f"result/{name}": np.asarray(v) for name, v in result.items()} | self.state()
            except (Unsupported, NotPlayed):
                yield None
            except LoadMismatch as error:
                raise PlayFailed(index, verb, str(error), "loaded") from error
            except RankMismatch as error:
                raise PlayFailed(index, verb, str(error), "apart") from error
            except Exception as error:
                raise PlayFailed.by(index, verb, error) from error
            else:
                yield observation

    def do(self, verb: Verb) -> Mapping[str, object]:
        """Plays one verb; returns its result."""
        trainer = self.trainer
        match verb:
            case Accumulate(micro=micro, items=items):
                return {"loss": trainer.accumulate(self.batch(micro), items)}
            case Apply():
                return _update_values(trainer.apply())
            case Train(micros=micros, cut=cut, times=times):
                window = self.window(micros, cut)
                return _update_values([trainer.update(window) for _ in range(times)][-1])
            case ApplyGradients():
                return self.apply_gradients(verb)
            case Gradients(micros=micros, times=times):
                window = self.window(micros)
                first, *others = [trainer.gradients(window) for _ in range(times)]
                return {
                    f"gradient.{n}": np.stack([g, *(o[n] for o in others)]) if others else g for n, g in first.items()
                }
            case Predict(micro=micro, averaged=averaged):
                evaluate = trainer.predict_averaged if averaged else trainer.predict
                outputs = evaluate(self.batch(micro).inputs)
                return {f"output.{name}": value for name, value in outputs.items()}
            case Save(slot=slot):
                self.save(slot)
            case Restore():
                self.restore(verb)
            case RestoreDamaged():
                return {"refused": self.restore_damaged(verb)}
            case DamageOffloaded():
                return {"refused": self.damage_offloaded(verb)}
            case StartAgain(onward=onward):
                self.recipe = self.case.recipe
                self.trainer = self.make(self.onward() if onward else None)
                return {f"setting.{name}": value for name, value in self.trainer.scaler_settings().items()}
            case TraceLayers(micro=micro):
                return self.trace_layers(micro)
            case CountBytes(micro=micro):
                return {"bytes": trainer.saved_bytes(self.batch(micro))}
            case WrongWidth():
                return {"raised": self.breaks(verb)}
            case OpenScope():
                self.scope(verb)
        return {}

    def apply_gradients(self, verb: ApplyGradients) -> Mapping[str, object]:
        """Gradients from outside; what the last time gave. A new run begins where a second unscaling is refused."""
        parameters = self.case.drawn.model.weights(0)
        window = [gradient.gradients(parameters) for gradient in verb.window]
        inject = None if verb.inject is None else verb.inject.gradients(parameters)
        self.lend(array for gradients in (*window, inject or {}) for array in gradients.values() if array is not None)
        try:
            for _ in range(verb.times):
                update = self.trainer.apply_gradients(
                    *window, unscale_calls=verb.unscale_calls, inject=inject, discard=verb.discard
                )
        except RuntimeError:
            if (verb.unscale_calls or 0) < 2:
                raise
            self.trainer = self.make()  # no clause says what a refusal leaves
            return {"refused": True}
        return _update_values(update)

    def trace_layers(self, micro: GeneratedBatch) -> Mapping[str, object]:
        """Outputs and gradients of every layer, and the parameters' gradients."""
        trace = self.trainer.trace(self.batch(micro))
        kinds = {"output": trace.outputs, "back": trace.gradients, "gradient": trace.parameters}
        return {f"{kind}.{path}": value for kind, values in kinds.items() for path, value in values.items()}

    def onward(self) -> dict[str, Array]:
        """The run's weights, in the formats that a model's first ones have."""
        model = self.case.drawn.model
        masters = self.trainer.master_parameters().items()
        return {name: v.astype(np.float64).astype(model.parameter_format(name)) for name, v in masters}

    def breaks(self, verb: WrongWidth) -> bool:
        """Whether a micro-batch whose inputs are a value too wide raises."""
        batch = self.batch(verb.micro)
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
                case "averaged":
                    self.trainer.predict_averaged(wider)
                case "trace":
                    self.trainer.trace(broken)
                case "bytes":
                    self.trainer.saved_bytes(broken)
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
    def damage_offloaded(self, verb: DamageOffloaded) -> bool:
        """Whether a run that cannot read what it has offloaded says so.

        Raises:
            NotPlayed: it has offloaded nothing to files that its state is read from.
        """

    @abstractmethod
    def scope(self, verb: OpenScope) -> None:
        """Opens a precision scope and leaves it."""


class NotPlayed(Exception):
    """The verb is not played."""


def _update_values(update: Update) -> dict[str, object]:
    values = {field.name: getattr(update, field.name) for field in fields(update)}
    return {name: value for name, value in values.items() if value is not None}
