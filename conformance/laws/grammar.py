"""Draws models from the grammar of layers, exact ones and ones whose values are rounded."""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.laws.programs import DrawnModel
from fixtures.layers import (
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
    MaxPool,
    Positions,
    Residual,
    SelfAttention,
    Shape,
)
from fixtures.model import LossKind
from frameworks.contract import Capability, Framework

WIDTHS = (1, 2, 3, 5, 7, 8, 13)
LARGE = 2**15 + 3
"""Rows of a table that has more than 10^5 values with `LARGE_WIDTH` columns."""
LARGE_WIDTH = 4
_EPSILONS = st.sampled_from([1e-5, 1e-12])
CURVED: tuple[ActivationKind, ...] = ("relu", "gelu", "tanh", "sigmoid")


@st.composite
def models(draw: st.DrawFn, framework: Framework, dropout: bool = False) -> DrawnModel:
    """Models of one of four kinds: vectors in exact values, vectors, token sequences, and pictures.

    Args:
        dropout: whether some of the layers are dropout, whose masks no oracle knows; some layer is, then.
    """
    kind = draw(st.sampled_from(["exact", "exact", "exact", "exact", "vectors", "tokens", "pictures"]))
    match kind:
        case "tokens":
            layers, sample = draw(_token_layers())
        case "pictures":
            layers, sample = draw(_picture_layers())
        case _:
            layers, sample = draw(_vector_layers(kind == "exact"))
    if dropout:
        place = draw(st.integers(sum(isinstance(layer, Embedding | Positions) for layer in layers), len(layers)))
        rate = draw(st.sampled_from([0.25, 0.5]))
        layers = (*layers[:place], Dropout(rate), *layers[place:])
        if draw(st.booleans()):
            layers = (*layers, Dropout(0.5))
    heads, losses = draw(_heads(framework, kind, bool(layers)))
    return DrawnModel(
        (*layers, heads),
        sample,
        losses,
        kind == "tokens",
        exact=kind == "exact",
        seed=draw(st.integers(0, 9)),
        gain=draw(st.sampled_from([0, 0, 0, 0, 3, -5])),
    )


@st.composite
def _vector_layers(draw: st.DrawFn, exact: bool) -> tuple[tuple[Layer, ...], Shape]:
    width = draw(st.sampled_from(WIDTHS))
    sample: Shape = (width,)
    layers: list[Layer] = []
    if draw(st.integers(0, 4)) == 0:
        length = draw(st.integers(1, 3))
        large = draw(st.integers(0, 2)) == 0
        columns = LARGE_WIDTH if large else draw(st.sampled_from([1, 3, 4]))
        entries = LARGE if large else draw(st.sampled_from([2, 5, 16]))
        layers += [Embedding(entries, columns), Flatten()]
        sample, width = (length,), length * columns
    for _ in range(draw(st.integers(0, 4))):
        block, width = draw(_block(width, exact))
        layers += block
    return tuple(layers), sample


@st.composite
def _block(draw: st.DrawFn, width: int, exact: bool) -> tuple[tuple[Layer, ...], int]:
    names = ["dense", "activated", "residual", "bare"] + ([] if exact else ["batch-norm"])
    names += ["layer-norm"] if not exact and width > 1 else []  # of one value any rounding error is all that is left
    units = draw(st.sampled_from([*WIDTHS * 2, 33]))
    kind: ActivationKind = "relu" if exact else draw(st.sampled_from(CURVED))
    match draw(st.sampled_from(names)):
        case "dense":
            return (Dense(units),), units
        case "activated":
            return (Dense(units), Activation(kind)), units
        case "residual":
            return (Residual((Dense(width), Activation(kind))),), width
        case "bare":
            return (Dense(units, bias=False),), units
        case "layer-norm":
            return (LayerNorm(draw(_EPSILONS)), Dense(units)), units
        case _:
            return (Dense(units), BatchNorm(draw(st.sampled_from([0.1, 0.5])))), units


@st.composite
def _token_layers(draw: st.DrawFn) -> tuple[tuple[Layer, ...], Shape]:
    length, width = draw(st.integers(2, 5)), draw(st.sampled_from([4, 6]))
    layers: list[Layer] = [Embedding(draw(st.sampled_from([3, 17, 4097])), width)]
    if draw(st.booleans()):
        layers.append(Positions(length))
    for _ in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(["attention", "dense", "norm"]))
        if kind == "attention":
            layers.append(Residual((LayerNorm(draw(_EPSILONS)), SelfAttention(2))))
        elif kind == "dense":
            layers.append(Residual((Dense(7), Activation("gelu"), Dense(width))))
        else:
            layers.append(LayerNorm(draw(_EPSILONS)))
    return tuple(layers), (length,)


@st.composite
def _picture_layers(draw: st.DrawFn) -> tuple[tuple[Layer, ...], Shape]:
    channels, filters = draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 3, 4]))
    layers: list[Layer] = [Convolution(filters, stride=draw(st.sampled_from([1, 2])))]
    if draw(st.booleans()):
        layers.append(BatchNorm())
    layers.append(Activation(draw(st.sampled_from(["gelu", "tanh"]))))
    if isinstance(first := layers[0], Convolution) and first.stride == 1 and draw(st.booleans()):
        layers.append(MaxPool(2))
    layers.append(Flatten())
    return tuple(layers), (4, 4, channels)


@st.composite
def _heads(
    draw: st.DrawFn, framework: Framework, kind: str, wide: bool
) -> tuple[Heads, tuple[tuple[str, LossKind], ...]]:
    """Heads; `wide` if some may be float64, as is open of a head that takes the inputs themselves."""
    wide = wide and framework.declares(Capability.FLOAT64_HEADS).supported and kind in ("exact", "vectors")
    count = 1 if kind in ("tokens", "pictures") else draw(st.sampled_from([1, 1, 2]))
    heads: list[Head] = []
    losses: list[tuple[str, LossKind]] = []
    for name in ("a", "b")[:count]:
        loss: LossKind = "squared_error"
        if kind in ("tokens", "pictures") or (kind == "vectors" and draw(st.booleans())):
            loss = "cross_entropy"
        float64 = wide and loss == "squared_error" and draw(st.integers(0, 3)) == 0
        units = draw(st.sampled_from([2, 3, 4] if loss == "cross_entropy" else [1, 2, 3, 4]))
        heads.append(Head(name, units, "float64" if float64 else "compute"))
        losses.append((name, loss))
    return Heads(tuple(heads)), tuple(losses)
