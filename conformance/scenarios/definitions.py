"""Every scenario, as data, and the table of its records: sides and quantities by framework."""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

import numpy as np

from conformance.scenarios.scenario import (
    MODEL,
    OFFLOADED,
    REDUCED,
    SAVED,
    SECONDS,
    QuantizedSide,
    Scenario,
    Setting,
    Side,
    accuracy,
    offloaded_bytes,
    rank_bytes,
    resident_bytes,
    share_of,
    squared_error,
)
from fixtures import data, models, pretrained
from fixtures.data import LENGTH, pair_batch, vocabulary
from fixtures.model import Batch, Head, Heads
from fixtures.recipe import (
    BFLOAT16,
    FLOAT16,
    SGD,
    Adam,
    DynamicScaling,
    Offload,
    Precision,
    Qat,
    Ranks,
    Recipe,
    Recompute,
    Sharding,
)
from results.compare.ratio import ratio
from results.record.files import one_line
from results.record.folders import WRITTEN
from results.record.model import Outcome
from results.record.reading import CheckResult, Measurement, Record
from results.show.clauses import title

SEGMENTED = "two segments"
ONE_PLACE, HERE = "one place", "here"
AT_LEAST = {"activations": "at least 1", "parameters": "1", "optimizer": "1"}
"""Expected share of offloaded bytes: an activation saved by two operations may be offloaded twice."""
FLOAT, WIDE, EIGHT_BIT = "float32", "32 bits", "8 bits"

_PIXELS, _CLASSES, _WIDTH = 28, 10, 512
_INTEGERS = "Jacob et al. 2018, arXiv:1712.05877"


def _in_formats(recipe: Recipe, *labels: str) -> tuple[Side, ...]:
    """Sides in float32, in float16 with dynamic loss scaling, and in bfloat16."""
    half = recipe.replace(precision=FLOAT16, scaling=DynamicScaling())
    recipes = (recipe, half, recipe.replace(precision=BFLOAT16))
    return tuple(Side(label, own) for label, own in zip(labels, recipes, strict=True))


def _points() -> Setting:
    about = "20,000 noisy points of sine and cosine, 2,000 others for the test"
    return Setting(models.sincos(), data.sincos_batch(), data.sincos_batch(2_000, seed=1), about)


_SINCOS = Scenario(
    name="sincos",
    title="Two float64 heads for sine and cosine, width 150, Adam 1e-2: float32 against mixed precision",
    source="the mixed-precision example: 20,000 points, 1,000 epochs",
    setting=_points,
    sides=_in_formats(Recipe(Adam(1e-2)), "plain", "mixed float16", "mixed bfloat16"),
    batch=20_000,
    epochs=1_000,
    learns_in=60,
    shorter={"cpu": 60, "emulated": 5},
    quality=squared_error(),
    published={
        ("mixed float16", "time ÷ plain's"): "0.68 (1.46 × as fast)",
        ("mixed float16", "bytes ÷ plain's"): "0.5",
        ("mixed bfloat16", "bytes ÷ plain's"): "0.5",
    },
)


def _centred_batch(size: int, seed: int) -> Batch:
    """Points around one centre for each class: inputs (size, _WIDTH) float32, labels (size)."""
    centres = np.random.default_rng(20).standard_normal((_CLASSES, _WIDTH))
    rng = np.random.default_rng([seed, 21])
    labels = rng.integers(0, _CLASSES, size)
    points = centres[labels] + 2.0 * rng.standard_normal((size, _WIDTH))
    return Batch(points.astype(np.float32), {"output": labels})


def _centres() -> Setting:
    about = "5,120 points around ten centres, 1,000 for the test"
    return Setting(models.blocks(3, _WIDTH), _centred_batch(5_120, 0), _centred_batch(1_000, 1), about)


_THREE_LAYERS = Recipe(SGD(0.05))
_SEGMENTS = Scenario(
    name="segments",
    title=f"Three linear layers of width {_WIDTH} with GELU, recomputed in two segments against not at all",
    source="the gradient-checkpointing example: segments=2",
    setting=_centres,
    sides=(Side("plain", _THREE_LAYERS), Side(SEGMENTED, _THREE_LAYERS.replace(recompute=Recompute(2)), equal=True)),
    batch=256,
    epochs=4,
    shorter={"emulated": 20},
    learns_in=20,
    quality=accuracy(),
    published={
        (SEGMENTED, "bytes ÷ plain's"): "0.4 to 0.5",
        (SEGMENTED, "time ÷ plain's"): "1.15 to 1.25",
        (SEGMENTED, "distance from plain's parameters"): "0",
    },
)


def _digits() -> Setting:
    """784-512-256-128-10 on handwritten digits, every fifth of them, at most 10,000, for the test."""
    count = len(data.digits()[0])
    tested = min(count // 5, 10_000)
    kind = "MNIST" if os.environ.get(data.MNIST_FOLDER) else "scikit-learn's digits at 28×28"
    train, test = data.digits_batch(count - tested), data.digits_batch(tested, count - tested)
    return Setting(models.digits_mlp(), train, test, f"{kind}, {count - tested:,}, and {tested:,} for the test")


_ADAM, _MOMENTUM = Recipe(Adam(1e-3)), Recipe(SGD(0.05, momentum=0.9))
_DIGITS = Scenario(
    name="",
    title="784-512-256-128-10",
    source="",
    setting=_digits,
    sides=(),
    batch=64,
    epochs=3,
    shorter={"emulated": 23},
    learns_in=23,
    quality=accuracy(),
)
"""What scenarios on digits have in common."""

_ACCUMULATION = replace(
    _DIGITS,
    name="digits-accumulation",
    title=f"{_DIGITS.title}, Adam 1e-3: batches of 32, four of them accumulated, and their 128 samples at once",
    source="the accumulation example: batch 32, k = 4, 2 epochs, the last window flushed",
    sides=(
        Side("128 at once", _ADAM),
        Side("4 × 32, flushed", _ADAM.replace(accumulation=4), micro=32),
        Side("4 × 32, whole windows", _ADAM.replace(accumulation=4), micro=32, whole=True),
        Side("32, no accumulation", _ADAM, micro=32),
    ),
    batch=128,
    epochs=2,
    shorter={"emulated": 12},
    learns_in=12,
    published={("4 × 32, whole windows", "bytes ÷ 128 at once's"): "0.25"},
)
_OPT_LEVELS = replace(
    _DIGITS,
    name="opt-levels",
    title=f"{_DIGITS.title} with momentum at apex's levels, float16; the scale is dynamic at O1 and O2",
    source="apex: amp.initialize(opt_level=...) and scale_loss",
    sides=(
        Side("O0", _MOMENTUM),
        Side("O1", _MOMENTUM.replace(precision=Precision("O1", "float16"), scaling=DynamicScaling())),
        Side("O2", _MOMENTUM.replace(precision=Precision("O2", "float16"), scaling=DynamicScaling())),
        Side("O3", _MOMENTUM.replace(precision=Precision("O3", "float16"))),
    ),
    published={("O1", "bytes ÷ O0's"): "0.5"},
)
_GRAPH_REWRITE = replace(
    _DIGITS,
    name="graph-rewrite",
    title=f"{_DIGITS.title} in a graph of float32 layers, as it is and rewritten by grappler",
    source="TensorFlow's automatic mixed precision, by option",
    sides=_in_formats(_MOMENTUM, "graph", "rewritten float16", "rewritten bfloat16"),
    modes={"tf": "rewrite"},
    only="no other framework rewrites a float32 graph",
)


def _sentences() -> Setting:
    model = models.sentence_encoder(len(vocabulary()), LENGTH, width=64, heads=4, inner=256, blocks=2)
    about = "960 pairs of sentences, 240 for the test; random weights, for pretrained ones are not installed"
    return Setting(model, pair_batch(960), pair_batch(240, seed=1), about)


def _pretrained_sentences() -> Setting:
    model, tokenize = pretrained.pair_model(), pretrained.tokenizer()
    count = sum(weight.size for weight in model.weights(0).values()) / 1e6
    about = f"960 pairs of sentences, 96 for the test; {model.name}'s weights, {count:.1f} million parameters"
    return Setting(model, pair_batch(960, tokenize), pair_batch(96, tokenize, seed=1), about)


def use_fp16(*, real: bool) -> Scenario:
    """The fine-tuning of a sentence-pair classifier with pretrained weights, or of a small model from random ones."""
    plain = Recipe(Adam(5e-5 if real else 1e-3))
    return Scenario(
        name="use-fp16",
        title="A sentence-pair classifier is fine-tuned: float32, float16 with dynamic loss scaling, bfloat16",
        source="Paddle's --use_fp16 on XNLI",
        setting=_pretrained_sentences if real else _sentences,
        sides=_in_formats(plain, "float32", "float16", "bfloat16"),
        batch=8 if real else 16,
        epochs=1 if real else 5,
        learns_in=16 if real else 150,
        quality=accuracy(position=0),
        shorter={"cpu": 16, "emulated": 2} if real else {"emulated": 150},
        modes={"paddle": "static"},
    )


def _rows(batch: Batch) -> Batch:
    """Digits (N, 784) as sequences (N, _PIXELS, _PIXELS), a row of pixels a token; the first token's label counts."""
    count = len(batch)
    labels = np.repeat(batch.targets["output"][:, None], _PIXELS, axis=1)
    mask = np.zeros((count, _PIXELS), np.float32)
    mask[:, 0] = 1.0
    return Batch(batch.inputs.reshape(count, _PIXELS, _PIXELS), {"output": labels}, mask)


def _rows_of_digits() -> Setting:
    encoder, digits = models.encoder(width=_PIXELS, length=_PIXELS, embedded=False), _digits()
    model = replace(encoder, layers=(*encoder.layers[:-1], Heads((Head("output", _CLASSES),))))
    return Setting(model, _rows(digits.train), _rows(digits.test), f"{digits.about}; a row of pixels is a token")


_ENCODER = Recipe(Adam(3e-3))
_READER = replace(
    _DIGITS,
    title="An encoder of two blocks reads digits row by row, Adam 3e-3: ",
    setting=_rows_of_digits,
    quality=accuracy(position=0),
)


def _with_ranks(name: str, level: Sharding, what: str, source: str) -> Scenario:
    ranks = {f"{count} ranks": Ranks(count, level) for count in (2, 4)}
    published = {
        (side, share_of(rank_bytes(kind), ONE_PLACE)): f"{1 / own.count:g}"
        for side, own in ranks.items()
        for kind in own.sharded
    }
    sides = (Side(ONE_PLACE, _ENCODER), *(Side(side, _ENCODER.replace(ranks=own)) for side, own in ranks.items()))
    title = f"{_READER.title}one place, two and four ranks, {what}"
    return replace(_READER, name=name, title=title, source=source, sides=sides, published=published)


def _with_offload(name: str, to: Literal["host", "disk"], memory: str, source: str, emulated: int) -> Scenario:
    published: dict[tuple[str, str], str] = {
        (kind, share_of(offloaded_bytes(kind), HERE)): AT_LEAST[kind] for kind in OFFLOADED
    }
    published |= {(kind, f"distance from {HERE}'s parameters"): "0" for kind in OFFLOADED}
    offloaded = (Side(kind, _ENCODER.replace(offload=Offload((kind,), to)), equal=True) for kind in OFFLOADED)
    what = f"all of it on the device, and activations, parameters or the optimizer's state in {memory}"
    title, sides, shorter = f"{_READER.title}{what}", (Side(HERE, _ENCODER), *offloaded), {"emulated": emulated}
    return replace(_READER, name=name, title=title, source=source, sides=sides, published=published, shorter=shorter)


def _small_digits() -> Setting:
    about = "1400 of scikit-learn's digits, 397 others for the test; random weights"
    return Setting(models.digits_mlp((128, 64)), data.digits_batch(1400), data.digits_batch(397, 1400), about)


_CLASSIFIER = replace(
    _DIGITS, title="A network of digits is trained ", setting=_small_digits, epochs=5, shorter={}, learns_in=60
)


def _make_quantized_scenario(name: str, what: str, source: str, bits: dict[str, int], **modes: str) -> Scenario:
    """A scenario with one side for each technique, by the number of bits of its weights."""
    sides = (Side(FLOAT, _ADAM), *(QuantizedSide(technique, _ADAM, technique=technique) for technique in bits))
    published = {(technique, share_of(MODEL, FLOAT)): f"{width / 32:g}" for technique, width in bits.items()}
    title = f"{_CLASSIFIER.title}in float32, then its layers have {what}"
    return replace(_CLASSIFIER, name=name, title=title, source=source, sides=sides, published=published, modes=modes)


_QAT = replace(
    _CLASSIFIER,
    name="qat",
    title=f"{_CLASSIFIER.title}in float32 and by QAT, whose model is converted to int8",
    source=_INTEGERS,
    sides=(
        Side(FLOAT, _ADAM),
        Side("aware", _ADAM.replace(quantization=Qat())),
        QuantizedSide("converted", _ADAM, beside="aware"),
    ),
    published={("converted", share_of(MODEL, FLOAT)): "0.25"},
)
_ADAM_8BIT = replace(
    _CLASSIFIER,
    name="adam-8bit",
    title=f"{_CLASSIFIER.title}by Adam with moments of 32 and of 8 bits",
    source="Dettmers et al. 2022, arXiv:2110.02861",
    sides=(Side(WIDE, _ADAM), Side(EIGHT_BIT, Recipe(Adam(1e-3, state_bits=8)))),
    published={(EIGHT_BIT, share_of(rank_bytes("optimizer"), WIDE)): "0.25"},
)

_SCENARIOS = (
    _SINCOS,
    _SEGMENTS,
    _ACCUMULATION,
    _OPT_LEVELS,
    _GRAPH_REWRITE,
    use_fp16(real=pretrained.is_installed()),
    _with_ranks("ddp", "replicated", "each with everything", "PyTorch's DistributedDataParallel"),
    _with_ranks(
        "shard-grad-op",
        "gradients",
        "gradients and optimizer state sharded",
        "ZeRO stage 2 (arXiv:1910.02054); PyTorch's ShardingStrategy.SHARD_GRAD_OP",
    ),
    _with_ranks(
        "fsdp",
        "full",
        "parameters, gradients and optimizer state sharded",
        "ZeRO stage 3 (arXiv:1910.02054); PyTorch's fully_shard",
    ),
    _with_offload(
        "cpu-offload",
        "host",
        "the host's memory",
        "ZeRO-Offload (arXiv:2101.06840); PyTorch's save_on_cpu; JAX's host offloading",
        23,
    ),
    _with_offload(
        "disk-offload",
        "disk",
        "files",
        "ZeRO-Infinity (arXiv:2104.07857); PyTorch's tutorial on hooks for saved tensors",
        6,
    ),
    _make_quantized_scenario(
        "dynamic-int8", "weights and inputs in int8, inputs by the range of each call", _INTEGERS, {"dynamic-int8": 8}
    ),
    _make_quantized_scenario(
        "static-int8",
        "weights, inputs and outputs in int8, by the range that calibration saw",
        _INTEGERS,
        {"static-int8": 8},
    ),
    _make_quantized_scenario(
        "weight-only",
        "weights in int8 or int4 and inputs in float32",
        "LLM.int8() (arXiv:2208.07339); GPTQ (arXiv:2210.17323)",
        {"weight-int8": 8, "weight-int4": 4},
    ),
    _make_quantized_scenario(
        "int8-load",
        "weights in int8 that pass through float16, and inputs in int8 but for columns of outliers",
        "LLM.int8(), Dettmers et al. 2022, arXiv:2208.07339",
        {"load-int8": 8},
        torch="transformers",
    ),
    _QAT,
    _ADAM_8BIT,
)

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _SCENARIOS}
"""Every scenario by its name."""


FOLDER = WRITTEN / "scenarios"
"""Where the records of scenarios are, in a folder for each."""

NONE = "–"
"""Text of a cell without a value."""

_COUNTED = {
    SAVED: ("bytes held", "bytes", SAVED),
    MODEL: (MODEL, MODEL, MODEL),
    **{name: (name, name, name) for name in map(rank_bytes, ("parameter", "gradient", "optimizer"))},
    **{offloaded_bytes(kind): (*[offloaded_bytes(kind)] * 2, resident_bytes(kind)) for kind in OFFLOADED},
}
"""Byte quantities: name in the table, name of the share of the first side, and name of the first side's quantity."""


@dataclass(frozen=True)
class QuantityRow:
    """One quantity of one side: the document's figure, then a cell for each record."""

    side: str
    quantity: str
    document: str
    cells: tuple[str, ...]


def rows(scenario: Scenario, records: Sequence[Record]) -> list[QuantityRow]:
    """Quantities in at least one record or the document."""
    result: list[QuantityRow] = []
    for side in scenario.labels:
        columns = [dict(_quantities(record, side, scenario.labels[0])) for record in records]
        published = [name for label, name in scenario.published if label == side]
        for name in dict.fromkeys([*(name for column in columns for name in column), *published]):
            cells = tuple(column.get(name, NONE) for column in columns)
            result.append(QuantityRow(side, name, scenario.published.get((side, name), ""), cells))
    return result


def remarks(records: Sequence[Record]) -> list[str]:
    """Why a side has no numbers or failed, and the notes of the records, one line for each text."""
    reasons: dict[str, list[str]] = {}
    notes: dict[str, list[str]] = {}
    for record in records:
        name = f"{record.series.framework} {record.series.mode}"
        for verdict in record.verdicts:
            if verdict.outcome is not Outcome.PASS:
                text = f"{name}, {verdict.outcome}: {verdict.reason or verdict.message}"
                reasons.setdefault(text, []).append(verdict.case)
        for note in record.notes:
            notes.setdefault(note, []).append(name)
    return [
        *(one_line(f"{'; '.join(sides)}: {text}") for text, sides in reasons.items()),
        *(one_line(f"{', '.join(frameworks)}: {note}") for note, frameworks in notes.items()),
    ]


def _quantities(record: Record, side: str, base: str) -> Iterator[tuple[str, str]]:
    verdict = next((verdict for verdict in record.verdicts if verdict.case == side), None)
    if verdict is None:
        return
    yield "outcome", verdict.outcome.value
    for check in verdict.checks:
        if isinstance(check.measured, int | float):
            yield check.what, _check_text(check, check.measured)
    for trace in record.traces:
        if trace.case == side and trace.curves.get("scale"):
            yield "loss scale at the end", f"{trace.curves['scale'][-1]:,.0f}"
    for quantity, (heading, share, base_quantity) in _COUNTED.items():
        counted, plain = sides_of(record, quantity).get(side), sides_of(record, base_quantity).get(base)
        if counted is not None:
            yield heading, f"{counted.samples[0]:,.0f}"
        if counted is not None and plain is not None and side != base:
            text = f"{counted.samples[0] / plain.samples[0]:.3g}" if plain.samples[0] else NONE
            yield share_of(share, base), text
    if reduced := sides_of(record, REDUCED).get(side):
        yield REDUCED, f"{reduced.samples[0]:.0f}"
    times = sides_of(record, SECONDS)
    if side in times:
        yield share_of("time", base), _ratio_text(times[side])
        yield SECONDS, f"{median(times[side].samples):.3g}"
    elif side == base and times:  # the control of the others
        yield SECONDS, f"{median(next(iter(times.values())).control):.3g}"


def sides_of(record: Record, quantity: str) -> dict[str, Measurement]:
    """The measurements of a quantity by side."""
    return {measured.case: measured for measured in record.measurements if measured.key == quantity}


def _check_text(check: CheckResult, measured: float) -> str:
    if check.what == "loss" and isinstance(check.bound, int | float):
        return f"{check.bound:.3g} → {measured:.3g}"
    return f"{measured:.0f} {check.expected}" if check.what == "skipped updates" else f"{measured:.3g}"


def _ratio_text(times: Measurement) -> str:
    result = ratio(times.control, times.samples)
    if result.judged:
        return f"{math.sqrt(result.low * result.high):.3g} ({result.low:.3g}–{result.high:.3g})"
    return f"{result.new / result.old:.2g}, too few rounds" if result.pairs and result.old else NONE


def markdown(scenario: Scenario, records: Sequence[Record]) -> str:
    """The table, the reasons and the notes."""
    lines, side = [], ""
    for row in rows(scenario, records):
        heading = "" if row.side == side else f"**{row.side}**"
        lines.append([heading, row.quantity, row.document, *row.cells])
        side = row.side
    headings = ["side", "quantity", "document", *(" ".join(title(record)) for record in records)]
    return "\n".join((markdown_table(headings, lines), "", *(f"- {line}" for line in remarks(records))))


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    rule = ["---"] * len(header)
    safe = [[cell.replace("|", r"\|") for cell in row] for row in (header, rule, *lines)]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in safe)
    return "\n".join(f"| {' | '.join(row)} |" for row in padded)
