"""Play a case, verb by verb, on runs of a framework or of the oracle, and observe the state after each verb."""

import shutil
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from conformance.checks.evidence import clean_message, same_bits, short_text
from conformance.checks.subject import Subject
from conformance.generative.programs.case import (
    Accumulate,
    Apply,
    ApplyGradients,
    CountBytes,
    Damage,
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
    Target,
    TraceLayers,
    Train,
    Verb,
    WrongWidth,
    cut_otherwise,
    step_text,
)
from conformance.search import Observation, laid_out, nth
from conformance.techniques.sharding import describe_difference
from fixtures.arrays import Array
from fixtures.model import Batch, Window
from fixtures.recipe import Precision, Recipe
from frameworks.base import RankGroupTrainer
from frameworks.contract import Trainer, Unsupported, Update

STEPS = "optimizer/steps"
"""Name of the number of updates in a run's state."""
MOST_UPDATES = 8
"""Largest number of updates that a used run makes before it loads a save; fewer if the saved run has made fewer."""


@dataclass(frozen=True)
class Play:
    """The run of a case: one observation for each verb that was played, None for the others."""

    observations: tuple[Observation | None, ...]

    @property
    def left_out(self) -> frozenset[int]:
        """Places of the verbs that were not played."""
        return frozenset(index for index, observation in enumerate(self.observations) if observation is None)


class PlayFailed(Exception):
    """A verb raised, changed arrays that the caller had read, loaded another state than saved, or made ranks differ.

    Attributes:
        name: "raised", "aliased", "loaded" or "apart".
    """

    def __init__(self, index: int, verb: Verb, what: str, name: str = "raised") -> None:
        super().__init__(f"step {index + 1}, {step_text(verb)}, {what}")
        self.place, self.name = index, name


class StateMismatch(Exception):
    """The state differs from the saved one, or a rank's state from rank 0's; `name` is that of `PlayFailed`."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class NotPlayed(Exception):
    """The verb cannot be played and is left out."""


class Executor(ABC):
    """Plays a case on runs made by `make`.

    Attributes:
        recipe: of the current run; after a load under overrides it differs from the case's.
    """

    def __init__(self, case: GeneratedCase) -> None:
        self.case, self.recipe = case, case.recipe
        self._lent: list[Array] = []
        self.trainer = self.make()

    @abstractmethod
    def make(self, weights: dict[str, Array] | None = None) -> Trainer:
        """Return a new run with the model's initial weights or the given ones."""

    @abstractmethod
    def save(self, slot: int) -> None:
        """Save the run in a slot."""

    @abstractmethod
    def restore(self, verb: Restore) -> None:
        """Restore the run saved in a slot.

        Raises:
            NotPlayed: nothing was saved in this slot.
        """

    def state(self) -> Observation:
        """Return the run's state."""
        return self.trainer.state()

    def batch(self, micro: GeneratedBatch) -> Batch:
        """Return the data of a micro-batch."""
        batch = self.laid_out(micro.batch(self.case.drawn), micro.seed)
        self.lend([batch.inputs, *batch.targets.values(), *([] if batch.mask is None else [batch.mask])])
        return batch

    def laid_out(self, batch: Batch, seed: int) -> Batch:
        """Return the batch in the memory layout that the run receives."""
        return batch

    def window(self, micros: tuple[GeneratedBatch, ...], cut: tuple[int, ...] = ()) -> Window:
        """Return the data of a window."""
        return cut_otherwise(tuple(self.batch(micro) for micro in micros), cut)

    def lend(self, arrays: Iterable[Array]) -> None:
        """Note that the next verb receives these arrays."""
        self._lent += arrays

    def take_back(self) -> None:
        """Overwrite the arrays given to the verb that has just returned, like a caller that reuses its buffers."""
        for array in self._lent:
            array.fill(1)
        self._lent.clear()

    def play(self, left_out: frozenset[int] = frozenset()) -> Play:
        """Play all verbs except those at the places `left_out`.

        Raises:
            PlayFailed: a verb raised.
        """
        return Play(tuple(self.steps(left_out)))

    def steps(self, left_out: frozenset[int] = frozenset()) -> Iterator[Observation | None]:
        """Yield the observation after each verb; None for a verb that is not played."""
        for index, verb in enumerate(self.case.program):
            try:
                if index in left_out:
                    raise NotPlayed
                result = self.do(verb)
                self.take_back()
                observation = {f"result/{name}": np.asarray(v) for name, v in result.items()} | self.state()
            except (Unsupported, NotPlayed):
                yield None
            except StateMismatch as error:
                raise PlayFailed(index, verb, str(error), error.name) from error
            except Exception as error:  # whatever else a framework raises is a failure of the verb
                raised = f"raised {type(error).__name__}: {clean_message(str(error))[:300]}"
                raise PlayFailed(index, verb, raised) from error
            else:
                yield observation

    def do(self, verb: Verb) -> Mapping[str, object]:
        """Play one verb and return its result."""
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
                return _gradient_values([trainer.gradients(window) for _ in range(times)])
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
        """Apply external gradients and return the last result. If a second unscaling is refused, begin a new run."""
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
            self.trainer = self.make()  # no clause says in what state a refusal leaves the run
            return {"refused": True}
        return _update_values(update)

    def trace_layers(self, micro: GeneratedBatch) -> Mapping[str, object]:
        """Return the outputs and gradients of every layer, and the parameters' gradients."""
        trace = self.trainer.trace(self.batch(micro))
        kinds = {"output": trace.outputs, "back": trace.gradients, "gradient": trace.parameters}
        return {f"{kind}.{path}": value for kind, values in kinds.items() for path, value in values.items()}

    def onward(self) -> dict[str, Array]:
        """Return the run's weights, in the formats of the model's initial weights."""
        model = self.case.drawn.model
        masters = self.trainer.master_parameters().items()
        return {name: v.astype(np.float64).astype(model.parameter_format(name)) for name, v in masters}

    def breaks(self, verb: WrongWidth) -> bool:
        """Return whether a micro-batch raises if its inputs are one value too wide."""
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
        except (Unsupported, NameError):  # a wrong name is an error in the code of an adapter
            raise
        except Exception:  # frameworks have no other exception in common for a wrong shape
            return True
        return False

    @abstractmethod
    def restore_damaged(self, verb: RestoreDamaged) -> bool:
        """Return whether loading a damaged save is refused.

        Raises:
            NotPlayed: nothing was saved in its slot, or nothing depends on the damaged file.
        """

    @abstractmethod
    def damage_offloaded(self, verb: DamageOffloaded) -> bool:
        """Return whether the run refuses to read its state from a damaged or missing offloaded file.

        Raises:
            NotPlayed: the run has no offloaded files that its state is read from.
        """

    @abstractmethod
    def scope(self, verb: OpenScope) -> None:
        """Open a precision scope and leave it."""


def _gradient_values(passes: Sequence[Mapping[str, Array]]) -> dict[str, object]:
    """Return the gradients of a pass, or those of several passes as arrays (passes, *shape)."""
    if len(passes) == 1:
        return {f"gradient.{name}": value for name, value in passes[0].items()}
    return {f"gradient.{name}": np.stack([gradients[name] for gradients in passes]) for name in passes[0]}


def _update_values(update: Update) -> dict[str, object]:
    values = {field.name: getattr(update, field.name) for field in fields(update)}
    return {name: value for name, value in values.items() if value is not None}


class SubjectExecutor(Executor):
    """Plays a case on the framework under test.

    Args:
        folder: folder for checkpoints.
        offloaded: folder of offloaded files, which runs may share; None for one below `folder`.
    """

    def __init__(self, subject: Subject, case: GeneratedCase, folder: Path, offloaded: Path | None = None) -> None:
        self._subject, self._folder, self._offloaded = subject, folder, offloaded or folder / "away"
        self._offloaded.mkdir(exist_ok=True)
        self._saved: dict[int, Path] = {}
        self._states: dict[int, Observation] = {}
        self._recipes: dict[int, Recipe] = {}
        self._folders: dict[int, set[Path]] = {}
        super().__init__(case)

    def make(self, weights: dict[str, Array] | None = None) -> Trainer:
        if weights is not None:
            weights = {name: laid_out(value, nth(index)) for index, (name, value) in enumerate(weights.items(), 1)}
            self.lend(weights.values())
        recipe, offload = self.recipe, self.recipe.offload
        if offload is not None and offload.to == "disk":
            recipe = recipe.replace(offload=replace(offload, folder=str(self._offloaded)))
        before = {*self._offloaded.iterdir()}
        trainer = self._subject.trainer(self.case.drawn.model, recipe, weights)
        self._folders[id(trainer)] = {*self._offloaded.iterdir()} - before
        return trainer

    def laid_out(self, batch: Batch, seed: int) -> Batch:
        """Return the batch in C order, transposed, or as every second element of larger arrays."""
        layout = nth(seed)
        targets = {name: laid_out(target, layout) for name, target in batch.targets.items()}
        mask = None if batch.mask is None else laid_out(batch.mask, layout)
        return Batch(laid_out(batch.inputs, layout), targets, mask)

    def play(self, left_out: frozenset[int] = frozenset()) -> Play:
        """Play all verbs except those at the places `left_out`.

        Raises:
            PlayFailed: a verb raised, or changed an array that the caller had read before.
        """
        observations: list[Observation | None] = []
        sums: dict[tuple[int, str], int] = {}
        for index, observation in enumerate(self.steps(left_out)):
            for (earlier, name), checksum in sums.items():
                if _checksum((observations[earlier] or {})[name]) != checksum:
                    what = f"changed the array {name} that the caller read after step {earlier + 1}"
                    raise PlayFailed(index, self.case.program[index], what, "aliased")
            observations.append(observation)
            results = {name: value for name, value in (observation or {}).items() if name.startswith("result/")}
            sums |= {(index, name): _checksum(value) for name, value in results.items()}
        return Play(tuple(observations))

    def state(self) -> Observation:
        if isinstance(self.trainer, RankGroupTrainer) and (difference := describe_difference(self.trainer.rank_group)):
            raise StateMismatch("apart", f"leaves {difference}")
        return self._subject.state(self.trainer)

    def save(self, slot: int) -> None:
        path = self._folder / str(slot)
        path.mkdir(exist_ok=True)
        waiting = bool(self.trainer.accumulator())
        try:
            self.trainer.save(path)
        except (RuntimeError, ValueError):
            if waiting:  # a framework may refuse to save an open window
                self._saved.pop(slot, None)
                raise NotPlayed from None
            raise
        self._saved[slot], self._states[slot], self._recipes[slot] = path, self.trainer.state(), self.recipe

    def restore(self, verb: Restore) -> None:
        if verb.slot not in self._saved:
            raise NotPlayed
        saved, saved_ranks = self._states[verb.slot], self._recipes[verb.slot].ranks
        if verb.into != "same":
            recipe = self.case.recipe if verb.under is None else verb.under.recipe(self.case.recipe)
            recipe = self.recipe if verb.alike else recipe
            waiting = any(name.startswith("accumulator/") for name in saved)
            if waiting and recipe.ranks != saved_ranks:
                raise NotPlayed
            self.recipe = recipe
        target = self.trainer if verb.into == "same" else self.make()
        self._use(target, verb.into, saved)
        target.restore(self._saved[verb.slot])
        self.trainer = target
        loaded = target.state()
        if self.recipe.ranks != saved_ranks:
            loaded = {name: value for name, value in loaded.items() if not name.startswith("random/")}
        self._check_loaded(saved, loaded)

    def _use(self, target: Trainer, into: Target, saved: Observation) -> None:
        """Bring a run that will load the saved state into the named condition."""
        micro, accumulation = GeneratedBatch(2, seed=77), self.case.recipe.accumulation
        batch = self.batch(micro)
        match into:
            case "used" | "predicted":
                for _ in range(min(MOST_UPDATES, int(np.max(saved.get(STEPS, 1))))):
                    target.update(self.window((micro,) * accumulation))
                if into == "predicted":
                    target.predict(batch.inputs)
                    if self.case.recipe.average is not None:
                        target.predict_averaged(batch.inputs)
            case "stopped":
                target.accumulate(batch, batch.items * accumulation)
            case "skipped":
                gradients = {name: np.full_like(v, np.inf) for name, v in target.parameters().items()}
                target.apply_gradients(*[gradients] * accumulation)

    def _check_loaded(self, saved: Observation, loaded: Observation) -> None:
        """Compare the loaded state with the saved one, including signs of zeros.

        Raises:
            StateMismatch: a value differs.
        """
        for name, value in saved.items():
            if name in loaded and not same_bits(loaded[name], value):
                text = f"loaded {name}: got {short_text(loaded[name])}, want {short_text(value)} as saved"
                raise StateMismatch("loaded", text)

    def restore_damaged(self, verb: RestoreDamaged) -> bool:
        if verb.slot not in self._saved:
            raise NotPlayed
        path = self._folder / f"damaged-{len(list(self._folder.iterdir()))}"
        shutil.copytree(self._saved[verb.slot], path)
        files = sorted(file for file in path.rglob("*") if file.is_file())
        _damage(files[int(verb.file * len(files))], verb.damage)
        if self._loses_nothing(path, self._states[verb.slot]):
            raise NotPlayed
        try:
            self.trainer.restore(path)
        except ValueError:
            return True
        return False

    def damage_offloaded(self, verb: DamageOffloaded) -> bool:
        before = self.trainer.state()
        paths = (path for folder in self._folders[id(self.trainer)] for path in folder.rglob("*"))
        files = sorted(path for path in paths if path.is_file() and path.stat().st_size)
        if not files:
            raise NotPlayed
        file = files[int(verb.file * len(files))]
        content = file.read_bytes()
        file.unlink()
        if verb.byte is not None:
            offset = int(verb.byte * len(content))
            file.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])
        refused = False
        try:
            self.trainer.state()
        except (OSError, ValueError, RuntimeError):
            refused = True
        file.write_bytes(content)
        self._check_loaded(before, self.trainer.state())
        return refused

    def _loses_nothing(self, path: Path, saved: Observation) -> bool:
        """Return whether a new run loads the whole saved state although a file is damaged, which is then not needed."""
        target = self.make()
        try:
            target.restore(path)
        except ValueError:
            return False
        state = target.state()
        return state.keys() == saved.keys() and all(same_bits(state[name], saved[name]) for name in saved)

    def scope(self, verb: OpenScope) -> None:
        precision = Precision("O1", verb.format)
        open_and_leave(self._subject.framework.autocast(precision, enabled=verb.enabled), verb.raises)


def open_and_leave(scope: AbstractContextManager[None], raises: bool) -> None:
    """Open a scope and leave it, by an exception if `raises`."""
    try:
        with scope:
            if raises:
                raise ZeroDivisionError
    except ZeroDivisionError:  # raised above
        pass


def _checksum(value: Array) -> int:
    return zlib.crc32(np.ascontiguousarray(value).tobytes())


def _damage(path: Path, how: Damage) -> None:
    """Cut a file in half, replace its content, or remove it."""
    match how:
        case "cut":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        case "foreign":
            path.write_bytes(b"not a checkpoint at all")
        case "missing":
            path.unlink()
