"""What publications and guides promise next to what the records say: a table a promise, as Markdown.

A row is one quantity in one framework and mode. Its bytes are counted, so that their ratio is exact; its times were
taken in pairs with those of the plain step, so that their ratio has an interval (`results.compare.ratio`). There is a
column for CPUs and one for every other kind of device that a record is of.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.scenarios.definitions import (
    AT_LEAST,
    EIGHT_BIT,
    FLOAT,
    HERE,
    ONE_PLACE,
    SCENARIOS,
    SEGMENTED,
    SIDES,
    WIDE,
)
from conformance.scenarios.scenario import (
    MODEL,
    OFFLOADED,
    SAVED,
    SECONDS,
    here_bytes,
    offloaded_bytes,
    rank_bytes,
    share_of,
)
from conformance.scenarios.table import NONE, markdown_table, sides_of
from results.compare.ratio import ratio
from results.record.outcomes import Outcome
from results.record.reading import Measurement, Record

NO_RECORD = "no record"
CPU = "cpu"

Figures = Callable[[Record], Mapping[str, str]]
"""What a record says of a quantity, by case: a ratio to the plain step's."""


@dataclass(frozen=True)
class Quantity:
    """One thing that a promise is about.

    Attributes:
        what: the fixture, in a few words.
        document: the document's own figure, or "".
        clause: the clause whose records show it.
        cases: regular expression for the parameters of its verdicts, or for the sides of its scenario; where a record
            has no number, these verdicts say whether it can have one.
        bytes, times: ratios to the plain step; None where nothing is promised.
    """

    what: str
    document: str
    clause: str
    cases: str
    bytes: Figures | None = None
    times: Figures | None = None


def counted(key: str, begin: str = "") -> Figures:
    """The counted ratios of the measurements whose key matches and whose parameters begin so."""
    return lambda record: {case: f"{cost.samples[0]:.3g}" for case, cost in _measured(record, key, begin)}


def timed(key: str, begin: str = "") -> Figures:
    """The times of the measurements whose key matches and whose parameters begin so, over their controls."""
    return lambda record: {case: _interval(cost) for case, cost in _measured(record, key, begin)}


def checked(clause: str, begin: str) -> Figures:
    """The ratios that the first checks of a clause measured, of cases whose parameters begin so."""
    return lambda record: {
        _label(verdict.case, begin): f"{float(str(verdict.checks[0].measured)):.3g}"
        for verdict in record.verdicts
        if verdict.clause == clause and parameters(verdict.case).startswith(begin) and verdict.checks
    }


def side_bytes(base: str, *sides: str, quantity: str = SAVED, over: str = "") -> Figures:
    """Counted bytes of a scenario's sides over those of another, of the same name unless `over` is given."""

    def ratios(record: Record) -> Mapping[str, str]:
        own, plain = sides_of(record, quantity), sides_of(record, over or quantity).get(base)
        shares = (
            {} if plain is None else {side: own[side].samples[0] / plain.samples[0] for side in sides if side in own}
        )
        return _by_side(sides, {side: f"{share:.3g}" for side, share in shares.items()})

    return ratios


def side_times(*sides: str) -> Figures:
    """Seconds of a scenario's sides over those of its first one."""

    def ratios(record: Record) -> Mapping[str, str]:
        rounds = sides_of(record, SECONDS)
        return _by_side(sides, {side: _interval(rounds[side]) for side in sides if side in rounds})

    return ratios


def _by_side(sides: Sequence[str], texts: Mapping[str, str]) -> Mapping[str, str]:
    """By side; one that is asked for alone needs no name."""
    return texts if len(sides) > 1 else dict(zip([""], texts.values(), strict=False))


def _measured(record: Record, key: str, begin: str) -> Iterator[tuple[str, Measurement]]:
    for cost in record.measurements:
        if re.fullmatch(key, cost.key) and parameters(cost.case).startswith(begin):
            yield _label(cost.case, begin), cost


def parameters(case: str) -> str:
    """The parameters of a test's case, "" without any."""
    return case.partition("[")[2].removesuffix("]")


def _label(case: str, begin: str) -> str:
    label = parameters(case).removeprefix(begin).removeprefix("O1-")
    return "" if label == "default" else label


def _interval(times: Measurement) -> str:
    interval = ratio(times.control, times.samples)
    if interval.judged:
        return f"{interval.low:.2f} to {interval.high:.2f}"
    return f"{interval.new / interval.old:.2g} of {interval.pairs} pairs" if interval.pairs and interval.old else NONE


def _of_scenario(
    name: str, what: str, side: str, figure: str, sizes: Figures | None = None, times: Figures | None = None
) -> Quantity:
    """A quantity of a side; `figure` is the document's, or the name of the published quantity."""
    scenario = SCENARIOS[name]
    return Quantity(what, scenario.published.get((side, figure), figure), scenario.clause, side, sizes, times)


def _of_ranks(name: str, what: str, kind: str) -> Quantity:
    """Resident bytes of the rank that holds most, by number of ranks."""
    share = share_of(rank_bytes(kind), ONE_PLACE)
    published = [(SCENARIOS[name].published.get((side, share)), side) for side in SIDES]
    document = "; ".join(f"{figure} ({side})" for figure, side in published if figure)
    sizes = side_bytes(ONE_PLACE, *SIDES, quantity=rank_bytes(kind))
    return Quantity(f"{what}, {kind} bytes", document, SCENARIOS[name].clause, SIDES[0], sizes)


_HALF, _SAVED = "0.5", "saved bytes over those in float32"
_BLOCKS = "eight dense blocks"
_TIME = "time ÷ plain's"
_STEP_GROWS = "1.15 to 1.25"
_MIXED = SCENARIOS["sincos"].labels[1:]
_SEGMENTS = [SCENARIOS["segments"].published[SEGMENTED, name] for name in ("bytes ÷ plain's", _TIME)]
_MOMENTS = rank_bytes("optimizer")

PROMISES: Mapping[str, tuple[Quantity, ...]] = {
    "mixed precision's bytes": (
        Quantity(f"{_BLOCKS}, 512 rows", _HALF, "cost.mixed-bytes", "O1-", checked("cost.mixed-bytes", "O1-")),
        *(
            Quantity(what, _HALF, "cost.mixed-bytes", f"{name}-", counted(_SAVED, f"{name}-"))
            for name, what in (("convolution", "convolutions with batch norm"), ("encoder", "an encoder block"))
        ),
        _of_scenario("sincos", "sin/cos example", "mixed", _HALF, side_bytes("plain", *_MIXED)),
        _of_scenario("opt-levels", "level O1 against O0, batches of 64", "O1", _HALF, side_bytes("O0", "O1")),
        _of_scenario("opt-levels", "level O3 against O0, batches of 64", "O3", "", side_bytes("O0", "O3")),
    ),
    "mixed precision's time": (
        *(
            Quantity(f"{_BLOCKS} of {size}", "0.5 or less", "cost.mixed-speed", cases, times=times)
            for size, cases, times in (
                ("32", "O1-", timed(r"seconds a step, O1-\w+", "O1-")),
                ("2,048", "(default|off|on)-", timed(r"seconds a step, O1-\w+, products, TF32 \w+")),
            )
        ),
        Quantity(
            "sin/cos example",
            SCENARIOS["sincos"].published["mixed float16", _TIME],
            "scenario.sincos",
            "mixed",
            times=side_times(*_MIXED),
        ),
        _of_scenario("use-fp16", "fine-tuning a pair classifier", "", "", times=side_times("float16", "bfloat16")),
    ),
    "recomputation": (
        Quantity(
            f"{_BLOCKS}, four segments, bytes at most",
            "0.4 to 0.5",
            "cost.recompute-bytes",
            "",
            counted("bytes at most over those of the whole, 4 segments"),
        ),
        *(
            Quantity(f"{_BLOCKS} of {size}, four segments", _STEP_GROWS, "cost.recompute-time", "", times=timed(key))
            for size, key in (("32", "seconds a step, 4 segments"), ("2,048", "seconds a step, 4 segments, products"))
        ),
        _of_scenario(
            "segments",
            "three linear layers, two segments, bytes before backward",
            SEGMENTED,
            f"bytes {_SEGMENTS[0]}, time {_SEGMENTS[1]}",
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
                counted(f"saved bytes of the last of {k} micro-batches .*", str(k)),
            )
            for k in (2, 8)
        ),
        _of_scenario(
            "digits-accumulation",
            "four micro-batches of 32 over 128 at once",
            "4 × 32, whole windows",
            "bytes 0.25",
            side_bytes("128 at once", "4 × 32, whole windows"),
            side_times("4 × 32, whole windows"),
        ),
    ),
    "sharded bytes": tuple(
        _of_ranks(name, what, kind)
        for name, what in (("fsdp", "an encoder, all sharded"), ("shard-grad-op", "an encoder, all but parameters"))
        for kind in ("parameter", "gradient", "optimizer")
    ),
    "offloaded bytes": tuple(
        _of_scenario(
            name,
            f"{what}, {kind}",
            kind,
            AT_LEAST[kind],
            side_bytes(HERE, kind, quantity=offloaded_bytes(kind), over=here_bytes(kind)),
            side_times(kind),
        )
        for name, what in (("cpu-offload", "an encoder, to the host"), ("disk-offload", "an encoder, to disk"))
        for kind in OFFLOADED
    ),
    "quantized bytes": (
        *(
            _of_scenario(
                name,
                f"a network of digits, {side.label}",
                side.label,
                share_of(MODEL, FLOAT),
                side_bytes(FLOAT, side.label, quantity=MODEL),
            )
            for name in ("dynamic-int8", "static-int8", "weight-only", "int8-load", "qat")
            for side in SCENARIOS[name].quantized
        ),
        _of_scenario(
            "adam-8bit",
            "a network of digits, 8-bit moments",
            EIGHT_BIT,
            share_of(_MOMENTS, WIDE),
            side_bytes(WIDE, EIGHT_BIT, quantity=_MOMENTS),
            side_times(EIGHT_BIT),
        ),
    ),
}
"""By the name of the promise's block."""


def table(quantities: Iterable[Quantity], records: Sequence[Record]) -> str:
    """Quantities with the frameworks down; what is promised, counted, and measured on each kind of device across."""
    kinds = sorted({kind for record in records if (kind := _kind(record)) != CPU}) or ["GPU"]
    headings = ["", "framework", "document", "exact count", *(f"{kind} measured" for kind in ("CPU", *kinds))]
    return markdown_table(headings, (row for own in quantities for row in _rows(own, records, (CPU, *kinds))))


def _kind(record: Record) -> str:
    return CPU if record.series.device == CPU else record.series.device_kind


def _rows(quantity: Quantity, records: Iterable[Record], kinds: Sequence[str]) -> Iterator[Sequence[str]]:
    by_series: dict[tuple[str, str], dict[str, Record]] = {}
    for record in records:
        if quantity.clause in record.clauses:
            by_series.setdefault((record.series.framework, record.series.mode), {})[_kind(record)] = record
    modes: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (framework, mode), by_kind in sorted(by_series.items()):
        counts = {kind: _cell(quantity, quantity.bytes, record) for kind, record in by_kind.items()}
        count = _joined(counts) if len(set(counts.values())) > 1 else counts.popitem()[1]
        cells = (count, *(_cell(quantity, quantity.times, by_kind.get(kind)) for kind in kinds))
        modes.setdefault((framework, cells), []).append(mode)
    what = quantity.what
    for (framework, cells), own in modes.items():
        yield what, f"{framework} {', '.join(own)}", quantity.document or NONE, *cells
        what = ""


def _cell(quantity: Quantity, figures: Figures | None, record: Record | None) -> str:
    if record is None:
        return NO_RECORD
    if figures is None:
        return NONE
    if result := figures(record):
        return _joined(result)
    outcomes = {
        verdict.outcome
        for verdict in record.verdicts
        if verdict.clause == quantity.clause and re.match(quantity.cases, parameters(verdict.case) or verdict.case)
    }
    refusals = (outcome for outcome in (Outcome.UNSUPPORTED, Outcome.NOT_OFFERED) if outcome in outcomes)
    return ", ".join(refusals) or NONE


def _joined(texts: Mapping[str, str]) -> str:
    """The text of each case, once for cases with the same text."""
    cases: dict[str, list[str]] = {}
    for case, text in texts.items():
        cases.setdefault(text, []).append(case)
    return "; ".join(f"{text} ({', '.join(names)})" if any(names) else text for text, names in cases.items())
