"""What publications and guides promise next to what the records say: a table a promise, as Markdown.

A row is one quantity in one framework and mode. Its bytes are counted, so that their ratio is exact; its times were
taken in pairs with those of the plain step, so that their ratio has an interval (`results.compare.ratio`). There is a
column for CPUs and one for every other kind of device that a record is of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.scenarios.encoder_digits import (
    AT_LEAST,
    CPU_OFFLOAD,
    DISK_OFFLOAD,
    FSDP,
    HERE,
    ONE_PLACE,
    SHARD_GRAD_OP,
    SIDES,
)
from conformance.scenarios.examples import SEGMENTED, SEGMENTS, SINCOS
from conformance.scenarios.quantized import (
    ADAM_8BIT,
    DYNAMIC_INT8,
    EIGHT_BIT,
    FLOAT,
    INT8_LOAD,
    QAT,
    STATIC_INT8,
    WEIGHT_ONLY,
    WIDE,
)
from conformance.scenarios.scenario import MODEL, OFFLOADED, Scenario, here_bytes, offloaded_bytes, rank_bytes, share_of
from conformance.scenarios.table import markdown_table
from results.record.outcomes import Outcome
from results.record.reading import Record
from tools.docs.figures import NONE, Figures, checked, counted, joined, parameters, side_bytes, side_times, timed

NO_RECORD = "no record"
CPU = "cpu"


@dataclass(frozen=True)
class Quantity:
    """One thing that a promise is about.

    Attributes:
        what: the fixture, in a few words.
        document: the document's own figure, or "".
        clause: the clause whose records show it.
        cases: what the parameters of its verdicts, or the sides of its scenario, begin with, a regular expression;
            where a record has no number, these verdicts say whether it can have one.
        bytes, times: what such a record has, as ratios to the plain step's; None where nothing is promised.
    """

    what: str
    document: str
    clause: str
    cases: str
    bytes: Figures | None = None
    times: Figures | None = None


def _of_ranks(what: str, scenario: Scenario, kind: str) -> Quantity:
    """What the rank that holds most has of a kind, by how many ranks there are."""
    share = share_of(rank_bytes(kind), ONE_PLACE)
    promised = [(scenario.published.get((side, share), ""), side) for side in SIDES]
    document = "; ".join(f"{figure} ({side})" for figure, side in promised if figure)
    sizes = side_bytes(ONE_PLACE, *SIDES, quantity=rank_bytes(kind))
    return Quantity(f"{what}, {kind} bytes", document, scenario.clause, SIDES[0], bytes=sizes)


def _offloaded(what: str, scenario: Scenario, kind: str) -> Quantity:
    """Bytes of a kind that are offloaded or sent, over the bytes that the control holds; and the time."""
    away = side_bytes(HERE, kind, quantity=offloaded_bytes(kind), over=here_bytes(kind))
    return Quantity(f"{what}, {kind}", AT_LEAST[kind], scenario.clause, kind, away, side_times(kind))


def _quantized(scenario: Scenario, side: str) -> Quantity:
    """Bytes of a quantized model over those of the one that was trained."""
    document = scenario.published[side, share_of(MODEL, FLOAT)]
    bytes_of = side_bytes(FLOAT, side, quantity=MODEL)
    return Quantity(f"a network of digits, {side}", document, scenario.clause, side, bytes_of)


_SAVED_BYTES = "saved bytes over those in float32"
_BYTES, _TIME = "bytes ÷ plain's", "time ÷ plain's"

PROMISES: Mapping[str, tuple[Quantity, ...]] = {
    "mixed precision's bytes": (
        Quantity(
            "eight dense blocks, 512 rows", "0.5", "cost.mixed-bytes", "O1-", bytes=checked("cost.mixed-bytes", "O1-")
        ),
        *(
            Quantity(what, "0.5", "cost.mixed-bytes", f"{name}-", bytes=counted(_SAVED_BYTES, f"{name}-"))
            for name, what in (("convolution", "convolutions with batch norm"), ("encoder", "an encoder block"))
        ),
        Quantity("sin/cos example", "0.5", "scenario.sincos", "mixed", side_bytes("plain", *SINCOS.labels[1:])),
        Quantity("level O1 against O0, batches of 64", "0.5", "scenario.opt-levels", "O1", side_bytes("O0", "O1")),
        Quantity("level O3 against O0, batches of 64", "", "scenario.opt-levels", "O3", side_bytes("O0", "O3")),
    ),
    "mixed precision's time": (
        Quantity(
            "eight dense blocks of 32",
            "0.5 or less",
            "cost.mixed-speed",
            "O1-",
            times=timed(r"seconds a step, O1-\w+", "O1-"),
        ),
        Quantity(
            "eight dense blocks of 2,048",
            "0.5 or less",
            "cost.mixed-speed",
            "(default|off|on)-",
            times=timed(r"seconds a step, O1-\w+, products, TF32 \w+"),
        ),
        Quantity(
            "sin/cos example",
            SINCOS.published["mixed float16", _TIME],
            "scenario.sincos",
            "mixed",
            times=side_times(*SINCOS.labels[1:]),
        ),
        Quantity("fine-tuning a pair classifier", "", "scenario.use-fp16", "", times=side_times("float16", "bfloat16")),
    ),
    "recomputation": (
        Quantity(
            "eight dense blocks, four segments, bytes at most",
            "0.4 to 0.5",
            "cost.recompute-bytes",
            "",
            bytes=counted("bytes at most over those of the whole, 4 segments"),
        ),
        Quantity(
            "eight dense blocks of 32, four segments",
            "1.15 to 1.25",
            "cost.recompute-time",
            "",
            times=timed("seconds a step, 4 segments"),
        ),
        Quantity(
            "eight dense blocks of 2,048, four segments",
            "1.15 to 1.25",
            "cost.recompute-time",
            "",
            times=timed("seconds a step, 4 segments, products"),
        ),
        Quantity(
            "three linear layers, two segments, bytes before backward",
            f"bytes {SEGMENTS.published[SEGMENTED, _BYTES]}, time {SEGMENTS.published[SEGMENTED, _TIME]}",
            "scenario.segments",
            SEGMENTED,
            side_bytes("plain", SEGMENTED),
            side_times(SEGMENTED),
        ),
    ),
    "accumulation": (
        *(
            Quantity(
                f"the last of {k} micro-batches of 32 over {k} · 32 samples at once",
                f"bytes {1 / k}",
                "cost.accumulation-bytes",
                f"{k}$",
                bytes=counted(f"saved bytes of the last of {k} micro-batches .*", str(k)),
            )
            for k in (2, 8)
        ),
        Quantity(
            "four micro-batches of 32 over 128 at once",
            "bytes 0.25",
            "scenario.digits-accumulation",
            "4 × 32, whole windows",
            side_bytes("128 at once", "4 × 32, whole windows"),
            side_times("4 × 32, whole windows"),
        ),
    ),
    "sharded bytes": tuple(
        _of_ranks(what, scenario, kind)
        for what, scenario in (("an encoder, all sharded", FSDP), ("an encoder, all but parameters", SHARD_GRAD_OP))
        for kind in ("parameter", "gradient", "optimizer")
    ),
    "offloaded bytes": tuple(
        _offloaded(what, scenario, kind)
        for what, scenario in (("an encoder, to the host", CPU_OFFLOAD), ("an encoder, to disk", DISK_OFFLOAD))
        for kind in OFFLOADED
    ),
    "quantized bytes": (
        *(
            _quantized(scenario, side.label)
            for scenario in (DYNAMIC_INT8, STATIC_INT8, WEIGHT_ONLY, INT8_LOAD, QAT)
            for side in scenario.quantized
        ),
        Quantity(
            "a network of digits, 8-bit moments",
            ADAM_8BIT.published[EIGHT_BIT, share_of(rank_bytes("optimizer"), WIDE)],
            ADAM_8BIT.clause,
            EIGHT_BIT,
            side_bytes(WIDE, EIGHT_BIT, quantity=rank_bytes("optimizer")),
            side_times(EIGHT_BIT),
        ),
    ),
}
"""By the name of the promise's block."""


def table(quantities: Iterable[Quantity], records: Sequence[Record]) -> str:
    """Quantities with the frameworks down; what is promised, counted, and measured on each kind of device across."""
    kinds = sorted({kind for record in records if (kind := _kind(record)) != CPU}) or ["GPU"]
    headings = ["", "framework", "document", "exact count", *(f"{kind} measured" for kind in ("CPU", *kinds))]
    return markdown_table(headings, (row for each in quantities for row in _rows(each, records, (CPU, *kinds))))


def _kind(record: Record) -> str:
    return CPU if record.series.device == CPU else record.series.device_kind


def _rows(quantity: Quantity, records: Iterable[Record], kinds: Sequence[str]) -> Iterator[Sequence[str]]:
    result: dict[tuple[str, str], dict[str, Record]] = {}
    for record in records:
        if quantity.clause in record.clauses:
            result.setdefault((record.series.framework, record.series.mode), {})[_kind(record)] = record
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (framework, mode), by_kind in sorted(result.items()):
        counts = {kind: _cell(quantity, quantity.bytes, record) for kind, record in by_kind.items()}
        count = joined(counts) if len(set(counts.values())) > 1 else counts.popitem()[1]
        cells = (count, *(_cell(quantity, quantity.times, by_kind.get(kind)) for kind in kinds))
        alike.setdefault((framework, cells), []).append(mode)
    what = quantity.what
    for (framework, cells), modes in alike.items():
        yield what, f"{framework} {', '.join(modes)}", quantity.document or NONE, *cells
        what = ""


def _cell(quantity: Quantity, figures: Figures | None, record: Record | None) -> str:
    if record is None:
        return NO_RECORD
    if figures is None:
        return NONE
    result = figures(record)
    if result:
        return joined(result)
    asked = [
        verdict.outcome
        for verdict in record.verdicts
        if verdict.clause == quantity.clause and re.match(quantity.cases, parameters(verdict.case) or verdict.case)
    ]
    return ", ".join(refusal for refusal in (Outcome.UNSUPPORTED, Outcome.NOT_OFFERED) if refusal in asked) or NONE
