"""Locates a failure: the first tensor of a run's first pass that rounding does not explain.

An ensemble of randomly rounded reference runs, as for an envelope (`conformance.oracle.errormodel`), gives the spread
of every layer's output, of the gradient with respect to that output, and of every parameter's gradient. Tensors are
checked in the order in which a pass computes them, so the error begins at the first tensor beyond its bound.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from conformance.checks.evidence import Verdict, Violation
from conformance.checks.subject import Subject, need
from conformance.oracle.bounds_cache import Origin, load_arrays, store
from conformance.oracle.errormodel import IMPLEMENTATION_FREEDOM, LAYER_STREAM, LEARNABLE, SAMPLES, distance, relevant
from fixtures.arrays import Array, format_of
from fixtures.model import Batch, Model, walk
from fixtures.recipe import Recipe
from frameworks.contract import Capability, Conventions, LayerTrace, Unsupported
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.rounding import Exact, Rounding, Stochastic

WITHIN = (
    "no layer of the first batch's pass is further from the reference than its rounding explains: "
    "look at what follows it (accumulation, scaler, optimizer, later updates)"
)


@dataclass(frozen=True)
class Deviation:
    """A tensor that is further from the exact one than rounding explains.

    Attributes:
        tensor: its name in a record, such as "output/2.body.1".
        label: the layer with its kind, and which of its tensors it is.
        what: name of the measured quantity.
        unlike: the reason why nothing could be measured ("missing", or a wrong shape), or "".
    """

    tensor: str
    label: str
    what: str
    measured: float
    bound: float
    unlike: str = ""

    def __str__(self) -> str:
        if self.unlike:
            return f"{self.label}: {self.unlike}"
        return f"{self.label}: {self.what} got {self.measured:.3g}, want at most {self.bound:.3g}"


@dataclass(frozen=True, eq=False)
class LayerBounds:
    """The exact tensors of a pass, and the bounds of a correct implementation's distance from each, by name.

    Attributes:
        distances: bound of the relative 2-norm distance; infinite for a tensor that is not judged.
        gains: bound of |⟨g, e⟩ / ⟨e, e⟩ − 1| of a parameter's gradient g and the exact one e; infinite likewise.
    """

    model: Model
    exact: Mapping[str, Array]
    distances: Mapping[str, float]
    gains: Mapping[str, float]

    def first_beyond(self, trace: LayerTrace) -> Deviation | None:
        """Return the first tensor of a pass whose distance, or else gain, exceeds its bound; None without any."""
        arrays = tensors(self.model, trace)
        for what, bounds, measure in (
            ("relative distance", self.distances, _distance),
            ("relative length along the exact one", self.gains, _gain),
        ):
            for name, bound in bounds.items():
                measured = measure(arrays.get(name), self.exact[name])
                if not measured <= bound:
                    unlike = _unlike(arrays.get(name), self.exact[name])
                    return Deviation(name, label(self.model, name), what, measured, bound, unlike)
        return None


def _unlike(measured: Array | None, exact: Array) -> str:
    if measured is None:
        return "missing"
    return "" if measured.shape == exact.shape else f"got shape {list(measured.shape)}, want {list(exact.shape)}"


def tensors(model: Model, trace: LayerTrace) -> dict[str, Array]:
    """Return all tensors of a pass by their names in a record, in the order in which the pass computes them.

    The forward pass gives "output/PATH" for each layer. The backward pass gives, from the last layer to the first,
    "gradient/PATH" of the layer's output and "parameter/NAME" of its parameters' gradients.
    """
    named = {f"output/{path}": output for path, output in trace.outputs.items()}
    for path in reversed(model.output_shapes()):
        if path in trace.gradients:
            named[f"gradient/{path}"] = trace.gradients[path]
        own = [name for name in model.parameter_shapes() if _owner(model, name) == path]
        named |= {f"parameter/{name}": trace.parameters[name] for name in own if name in trace.parameters}
    return named


def label(model: Model, tensor: str) -> str:
    """Return the layer that computes a tensor, with its kind, and which of the layer's tensors it is.

    A gradient with respect to an output is computed by the layer that the output enters.
    """
    role, _, name = tensor.partition("/")
    head = len(model.layers) - 1
    kinds = {path: type(layer).__name__ for path, layer in walk(model.layers)}
    kinds |= {f"{head}.{part.name}": "Heads" for part in model.heads.heads}
    match role:
        case "parameter":
            owner = _owner(model, name)
            return f"{owner} ({kinds[owner]}), gradient of {name.removeprefix(f'{owner}.')}"
        case "gradient":
            following = list(model.output_shapes())
            entered = following[following.index(name) + 1 :]
            if name.startswith(f"{head}."):
                return f"loss, gradient of its input from {name} ({kinds[name]})"
            path = str(head) if entered[0].startswith(f"{head}.") else entered[0]
            return f"{path} ({kinds[path]}), gradient of its input"
        case _:
            return f"{name} ({kinds[name]}), output"


def _owner(model: Model, parameter: str) -> str:
    """Return the path of a parameter's layer: the longest path that is a prefix of the parameter's name."""
    return max((path for path in model.output_shapes() if parameter.startswith(f"{path}.")), key=len)


def layer_bounds(conventions: Conventions, model: Model, recipe: Recipe, batch: Batch) -> LayerBounds:
    """Return the bounds of a pass; their spreads come from the cache if those of the same origin are there."""
    plain = Recipe(precision=recipe.precision, scaling=recipe.scaling, seed=recipe.seed)
    conventions = relevant(conventions, model, plain)
    origin = Origin(conventions, model, plain, ((batch,),))
    kind = f"{sha256(Path(__file__).read_bytes()).hexdigest()[:8]}.layers"

    def run_rounded(rounding: Rounding) -> dict[str, Array]:
        reference = ReferenceFramework("cpu", conventions=conventions, rounding=rounding)
        return tensors(model, reference.trainer(model, plain).trace(batch))

    exact = run_rounded(Exact())
    spreads = load_arrays(origin, kind, ("distances", "gains"))
    if spreads is None:
        rngs = (np.random.default_rng([plain.seed, LAYER_STREAM, member]) for member in range(SAMPLES))
        spreads = _spreads(exact, [run_rounded(Stochastic(rng)) for rng in rngs])
        store(origin, kind, spreads)
    distances, gains = (dict(zip(exact, spreads[kind], strict=True)) for kind in ("distances", "gains"))
    gains = {name: spread for name, spread in gains.items() if name.startswith("parameter/")}
    of_distances = _bounds(distances, exact, recipe.precision.format)
    return LayerBounds(model, exact, of_distances, _bounds(gains, exact, "float32"))


def _spreads(exact: Mapping[str, Array], members: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the spreads of distances and gains of an ensemble, one number for each tensor.

    A gain's spread is at least the component that an error of a member's size has along any one direction by chance.
    """
    distances = np.array([[_distance(member[name], exact[name]) for name in exact] for member in members])
    gains = [[_gain(member[name], exact[name]) for name in exact] for member in members]
    chances = distances / np.sqrt([array.size for array in exact.values()])
    return {"distances": distances.max(axis=0), "gains": np.maximum(np.max(gains, axis=0), chances.max(axis=0))}


def _bounds(spreads: Mapping[str, float], exact: Mapping[str, Array], format_name: str) -> dict[str, float]:
    """Return bounds from spreads of at least one rounding; infinite for a tensor of zeros or mostly rounding error."""
    unit = format_of(format_name).unit_roundoff
    at_least = {name: max(spread, unit) for name, spread in spreads.items()}
    return {
        name: float(IMPLEMENTATION_FREEDOM * spread) if spread <= LEARNABLE and exact[name].any() else np.inf
        for name, spread in at_least.items()
    }


def _distance(measured: Array | None, exact: Array) -> float:
    """Return the relative 2-norm distance; infinite for a missing tensor or a wrong shape, NaN for NaN values."""
    if measured is None or measured.shape != exact.shape:
        return np.inf
    with np.errstate(all="ignore"):
        return distance(measured.astype(np.float64), exact)


def _gain(measured: Array | None, exact: Array) -> float:
    """Return |⟨g, e⟩ / ⟨e, e⟩ − 1| for a tensor g and the exact one e."""
    if measured is None or measured.shape != exact.shape:
        return np.inf
    with np.errstate(all="ignore"):
        return float(abs(np.sum((measured.astype(np.float64) - exact) * exact)) / np.sum(exact**2))


def record_layers(subject: Subject, verdict: Verdict, model: Model, recipe: Recipe, batch: Batch) -> None:
    """Record the tensors of a new run's first pass, if the framework exposes them."""
    try:
        need(subject, Capability.TRACE)
        verdict.tensors("layers", tensors(model, subject.trainer(model, recipe).trace(batch)))
    except Unsupported:
        return


@contextmanager
def naming_the_layer(subject: Subject, model: Model, recipe: Recipe, batch: Batch) -> Generator[None]:
    """Within the context, add to a raised violation the layer in which the first pass of a new run goes wrong.

    The violation stays unchanged if the framework does not expose its layers, or fails while it does.
    """
    try:
        yield
    except Violation as error:
        if note := _locate_failure(subject, model, recipe, batch):
            error.add_note(note)
        raise


def _locate_failure(subject: Subject, model: Model, recipe: Recipe, batch: Batch) -> str:
    """Return a note about the first layer beyond its bound, "" if no layer can be shown.

    A framework may raise any exception while it shows its layers. The test reports the violation then, without a note.
    """
    for candidate in (recipe, recipe.replace(recompute=None)):
        try:
            trace = subject.trainer(model, candidate).trace(batch)
            bounds = layer_bounds(subject.conventions, model, subject.complete_recipe(candidate), batch)
            beyond = bounds.first_beyond(trace)
        except Unsupported:
            continue
        except Exception:
            return ""
        return f"first layer further from the reference than its rounding explains: {beyond}" if beyond else WITHIN
    return ""
