"""Generates models from a grammar of layers, exact ones and rounded ones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from conformance.generative.programs.case import GeneratedModel
from fixtures.model import (
    Activation,
    ActivationKind,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Head,
    Heads,
    Layer,
    LayerNorm,
    LossKind,
    MaxPool,
    Positions,
    Residual,
    SelfAttention,
    Shape,
)
from frameworks.contract import Capability, Framework

WIDTHS = (1, 2, 3, 5, 7, 8, 13)
LONG_WIDTHS = (33, 67, 130, 259, 1027)
"""Widths beyond what is done in blocks of 32, 64, 128, 256 or 1024."""
LONG_SEQUENCES = (35, 67)
MANY_CLASSES = (300, 1100)
"""More than eight bits count, and more than a block of 1024."""
LARGE = 2**16 + 3
"""Rows of a table that has more than 10^5 values with `LARGE_WIDTH` columns, and more rows than 16 bits count."""
LARGE_WIDTH = 2
SHIFT = 64.0
"""Added to inputs that are normalised first; next to it a low format holds halves or sixteenths."""
_EPSILONS = st.sampled_from([1e-5, 1e-12])
MOSTLY_STRAIGHT: tuple[ActivationKind, ...] = ("relu",) * 6 + ("gelu", "tanh", "sigmoid")
_VARIANCE_EPSILONS = st.sampled_from([1e-5, 1e-5, 1e-3, 1e-7])
_MOMENTA = st.sampled_from([0.1, 0.1, 0.5, 0.5, 0.0, 1.0])
CURVED: tuple[ActivationKind, ...] = ("relu", "gelu", "tanh", "sigmoid")


@st.composite
def models(draw: st.DrawFn, framework: Framework, dropout: bool = False) -> GeneratedModel:
    """Models of one of four kinds: vectors in exact values, vectors, token sequences, and pictures.

    Args:
        dropout: whether some of the layers are dropout, whose masks no oracle knows; some layer is, then.
    """
    kind = draw(st.sampled_from(["exact"] * 5 + ["vectors"] * 3 + ["tokens", "pictures"] * 2))
    match kind:
        case "tokens":
            layers, sample = draw(_token_layers())
        case "pictures":
            layers, sample = draw(_picture_layers())
        case _:
            layers, sample = draw(_vector_layers(kind == "exact"))
    inner = bool(layers)
    if dropout:
        index = draw(st.integers(sum(isinstance(layer, Embedding | Positions) for layer in layers), len(layers)))
        rate = draw(st.sampled_from([0.25, 0.5]))
        layers = (*layers[:index], Dropout(rate), *layers[index:])
        if draw(st.booleans()):
            layers = (*layers, Dropout(0.5))
    shift = 0.0
    if inner and isinstance(layers[0], BatchNorm) and draw(st.booleans()):
        layers, shift = (replace(layers[0], momentum=1.0), *layers[1:]), SHIFT
    heads, losses = draw(_heads(framework, kind, inner))
    plain = kind != "tokens" and not any(isinstance(layer, BatchNorm) for layer in layers)
    return GeneratedModel(
        (*layers, heads),
        sample,
        losses,
        kind == "tokens",
        exact=kind == "exact",
        seed=draw(st.integers(0, 9)),
        gain=draw(st.sampled_from([0, 0, 0, 0, 3, 7, -5])),
        offset=draw(st.sampled_from([0.0] * 6 + [16.0, 1024.0])) if plain else 0.0,
        shift=shift,
    )


@st.composite
def _vector_layers(draw: st.DrawFn, exact: bool) -> tuple[tuple[Layer, ...], Shape]:
    width = draw(st.sampled_from([*WIDTHS * 4, *LONG_WIDTHS]))
    sample: Shape = (width,)
    layers: list[Layer] = []
    if draw(st.integers(0, 4)) == 0:
        length = draw(st.integers(1, 3))
        large = draw(st.integers(0, 2)) == 0
        columns = LARGE_WIDTH if large else draw(st.sampled_from([1, 3, 4]))
        entries = LARGE if large else draw(st.sampled_from([2, 5, 16]))
        layers += [Embedding(entries, columns), Flatten()]
        sample, width = (length,), length * columns
    deep = draw(st.integers(0, 11)) == 0
    for _ in range(draw(st.integers(9, 11) if deep else st.integers(0, 4))):
        block, width = draw(_block(width, exact))
        layers += block
    return tuple(layers), sample


@st.composite
def _block(draw: st.DrawFn, width: int, exact: bool) -> tuple[tuple[Layer, ...], int]:
    """A sequence of layers; an ordinary width follows a large one, so that no product is large."""
    long = width > max(WIDTHS)
    names = ["dense", "activated", "bare"] + ([] if exact else ["batch-norm"]) + ([] if long else ["residual"])
    names += ["layer-norm"] if not exact and width > 1 else []  # of one value any rounding error is all that is left
    units = draw(st.sampled_from([*WIDTHS] if long else [*WIDTHS * 4, *LONG_WIDTHS]))
    kind = draw(st.sampled_from(MOSTLY_STRAIGHT if exact else CURVED))
    match draw(st.sampled_from(names)):
        case "dense":
            return (Dense(units),), units
        case "activated":
            return (Dense(units), Activation(kind)), units
        case "residual":
            dense, activation = Dense(width), Activation(kind)
            bodies: list[tuple[Layer, ...]] = [(dense, activation), (activation, dense), (dense, activation, dense)]
            bodies.append((dense, Residual((activation, dense))))
            return (Residual(draw(st.sampled_from(bodies))),), width
        case "bare":
            return (Dense(units, bias=False),), units
        case "layer-norm":
            return (LayerNorm(draw(_EPSILONS)), Dense(units)), units
        case _:
            norm = BatchNorm(draw(_MOMENTA), draw(_VARIANCE_EPSILONS))
            return draw(st.sampled_from([(Dense(units), norm), (Dense(units), norm), (norm, Dense(units))])), units


@st.composite
def _token_layers(draw: st.DrawFn) -> tuple[tuple[Layer, ...], Shape]:
    length, width = draw(st.sampled_from([*(2, 3, 4, 5) * 4, *LONG_SEQUENCES])), draw(st.sampled_from([4, 6]))
    layers: list[Layer] = [Embedding(draw(st.sampled_from([3, 17, 4097])), width)]
    if draw(st.booleans()):
        layers.append(Positions(length))
    for _ in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(["attention", "dense", "norm"]))
        if kind == "attention":
            layers.append(
                Residual((LayerNorm(draw(_EPSILONS)), SelfAttention(draw(st.sampled_from([1, 2, 2, width])))))
            )
        elif kind == "dense":
            layers.append(Residual((Dense(7), Activation("gelu"), Dense(width))))
        else:
            layers.append(LayerNorm(draw(_EPSILONS)))
    return tuple(layers), (length,)


@st.composite
def _picture_layers(draw: st.DrawFn) -> tuple[tuple[Layer, ...], Shape]:
    height, width = draw(st.sampled_from([*[(4, 4), (5, 4), (4, 6), (6, 5), (3, 7)] * 2, (19, 10)]))
    sample: Shape = (height, width, draw(st.sampled_from([1, 2, 3])))
    layers: list[Layer] = []
    for _ in range(draw(st.integers(1, 2))):
        size = draw(st.sampled_from([size for size in (1, 2, 3, 3, 5) if size <= min(height, width)]))
        stride, padding = draw(st.sampled_from([1, 1, 2])), draw(st.integers(0, size // 2))
        layers.append(Convolution(draw(st.sampled_from([1, 3, 4, 1, 3, 4, 35])), size, stride, padding))
        height, width = ((side + 2 * padding - size) // stride + 1 for side in (height, width))
        if draw(st.booleans()):
            layers.append(BatchNorm(epsilon=draw(_VARIANCE_EPSILONS)))
        layers.append(Activation(draw(st.sampled_from(["gelu", "tanh"]))))
    pools = [size for size in (2, 2, 3, 4) if height % size == width % size == 0]
    if draw(st.booleans()) and pools:
        layers.append(MaxPool(draw(st.sampled_from(pools))))
    return (*layers, Flatten()), sample


@st.composite
def _heads(
    draw: st.DrawFn, framework: Framework, kind: str, inner: bool
) -> tuple[Heads, tuple[tuple[str, LossKind], ...]]:
    """Heads; `inner` if some may be float64, as is open of a head that takes the inputs themselves."""
    wide = inner and framework.declares(Capability.FLOAT64_HEADS).supported and kind in ("exact", "vectors")
    count = 1 if kind in ("tokens", "pictures") else draw(st.sampled_from([*[1, 1, 2] * 4, 3]))
    heads: list[Head] = []
    losses: list[tuple[str, LossKind]] = []
    for name in ("a", "b", "c")[:count]:
        loss: LossKind = "squared_error"
        if kind in ("tokens", "pictures") or draw(st.integers(0, 3)) < {"vectors": 2, "exact": 1}[kind]:
            loss = "cross_entropy"
        float64 = wide and loss == "squared_error" and draw(st.integers(0, 3)) == 0
        classes = [*(2, 3, 4) * 12, *MANY_CLASSES]
        units = draw(st.sampled_from(classes if loss == "cross_entropy" else [1, 2, 3, 4]))
        alike = draw(st.booleans())
        units = heads[0].units if heads and heads[0].units > 1 and alike else units
        heads.append(Head(name, units, "float64" if float64 else "compute"))
        losses.append((name, loss))
    return Heads(tuple(heads)), tuple(losses)
