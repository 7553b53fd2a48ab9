"""`conformance curves`: reading, judging, showing and recording training curves."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from conformance.cli import main
from conformance.curves import CurveRecorder
from results.curves import reading
from results.curves.judge import Judgement, compare_curves
from results.curves.reading import Curve, read_curve
from results.record.files import RecordError

STEPS = 60
RNG = np.random.default_rng(0)
LOSS = 2.3 * np.exp(-np.arange(STEPS) / 30) * (1 + 0.1 * RNG.standard_normal(STEPS))
NORM = 1.5 + 0.3 * RNG.standard_normal(STEPS)
RATE = 1e-3 * (1 + np.cos(np.pi * np.arange(STEPS) / STEPS)) / 2
SCALE = np.where(np.arange(STEPS) < 40, 1024.0, 2048.0)
NOISE = 2.0**-24 * RNG.standard_normal(STEPS)


def write(path: Path, header: Mapping[str, object] | None = None, **series: Sequence[object] | np.ndarray) -> Path:
    """Write JSON lines of these series, one entry for each step."""
    entries = [{"curve": 1, "format": "float32"} | dict(header or {})]
    columns = {name: np.asarray(values).tolist() for name, values in series.items()}
    entries += [
        dict(zip(["step", *columns], row, strict=True)) for row in zip(range(STEPS), *columns.values(), strict=False)
    ]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The file of the old run."""
    return write(tmp_path / "old.jsonl", loss=LOSS, gradient_norm=NORM, learning_rate=RATE, loss_scale=SCALE)


def compare(old: Path, new: Path, precision: str = "", controls: Sequence[Path] = ()) -> Judgement:
    """Judge two files."""
    return compare_curves(read_curve(old), read_curve(new), [read_curve(path) for path in controls], precision)


def change(path: Path, **series: np.ndarray) -> Path:
    """Write the old run with these series instead."""
    return write(
        path, **({"loss": LOSS, "gradient_norm": NORM, "learning_rate": RATE, "loss_scale": SCALE} | dict(series))
    )


AFTER = np.arange(STEPS) >= 30
TWO_LATER = np.concatenate([LOSS[2:], LOSS[-2:] * 0.9])


@pytest.mark.parametrize(
    ("changes", "series", "kind", "start", "text"),
    [
        ({}, "loss", "identical", None, "identical in 60 steps"),
        ({"loss": LOSS * (1 + NOISE)}, "loss", "rounding", 0, "differs by rounding"),
        (
            {"loss": LOSS * 4, "gradient_norm": NORM * 4},
            "gradient_norm",
            "factor",
            0,
            "4, as a number of micro-batches",
        ),
        ({"gradient_norm": NORM / 8**0.5}, "gradient_norm", "factor", 0, "1/√8"),
        ({"gradient_norm": NORM * 65536}, "gradient_norm", "factor", 0, "2^16, as a loss scale"),
        ({"loss": LOSS * 1.37}, "loss", "factor", 0, "1.37 times"),
        ({"loss": TWO_LATER}, "loss", "shift", 0, "that of 2 steps later in the old run"),
        ({"loss": LOSS * np.where(AFTER, 1.001, 1.0)}, "loss", "fault", 30, "drifts from step 30"),
        ({"loss": LOSS * (1 + NOISE + 1e-5 * (np.arange(STEPS) > 1))}, "loss", "fault", 2, "drifts from step 2"),
        ({"loss": LOSS[::-1].copy()}, "loss", "data", 0, "other weights, other data"),
        ({"loss": np.where(AFTER, np.nan, LOSS)}, "loss", "non-finite", 30, "nan in the new run"),
        ({"learning_rate": RATE * 1.001}, "learning_rate", "rate", 0, "1.001 times the old one from step 0"),
        ({"learning_rate": np.append(RATE[1:], 0.0)}, "learning_rate", "shift", 0, "1 step later in the old run"),
        ({"learning_rate": np.where(AFTER, 1e-4, RATE)}, "learning_rate", "rate", 30, "is 0.0001, was 0.0005"),
        ({"loss_scale": np.where(AFTER, 65536.0, SCALE)}, "loss_scale", "scale", 30, "is 65536, was 1024, at step 30"),
    ],
)
def test_compare_curves_names_kind_and_first_step(
    old: Path, tmp_path: Path, changes: Mapping[str, np.ndarray], series: str, kind: str, start: int | None, text: str
) -> None:
    judgement = compare(old, change(tmp_path / "new.jsonl", **changes))
    verdict = next(verdict for verdict in judgement.verdicts if verdict.series == series)
    assert (verdict.kind, verdict.start) == (kind, start)
    assert text in verdict.text
    assert judgement.status == (0 if kind in ("identical", "rounding") else 1)


def test_compare_curves_of_two_formats_takes_the_coarser_rounding(old: Path, tmp_path: Path) -> None:
    low = write(tmp_path / "low.jsonl", {"format": "bfloat16"}, loss=LOSS * (1 + 2.0**16 * NOISE))
    judgement = compare(old, low)
    assert judgement.status == 0
    assert judgement.notes[0] == "the old run computes in float32, the new one in bfloat16"


def test_compare_curves_leads_with_the_cause(old: Path, tmp_path: Path) -> None:
    later = np.where(np.arange(STEPS) > 0, LOSS * 1.01, LOSS)
    judgement = compare(old, change(tmp_path / "new.jsonl", loss=later, learning_rate=RATE * 1.001))
    assert judgement.sentence.startswith("not the same training: learning rate is 1.001 times")
    assert "loss from step 1" in judgement.sentence


def test_compare_curves_batches_of_the_next_step_are_data(tmp_path: Path) -> None:
    names = [f"{n:08x}" for n in range(STEPS + 1)]
    old = write(tmp_path / "a", loss=LOSS, batch=names[:-1])
    shifted = [*names[:30], *names[31:]]
    judgement = compare(old, write(tmp_path / "b", loss=np.where(AFTER, LOSS * 1.1, LOSS), batch=shifted))
    assert judgement.verdicts[0].series == "batch"
    assert judgement.verdicts[0].kind == "data"
    assert "1 step later in the old run" in judgement.sentence


def test_compare_curves_of_few_decimals_states_the_resolution(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path, factor in zip(paths, (1, 1 + 2.0**-16, 1.01), strict=True):
        write(path, loss=[round(float(value), 4) for value in LOSS * factor])
    clean = compare(paths[0], paths[1])
    assert clean.status == 0
    assert "decimals of 0.0001" in clean.verdicts[0].text
    assert compare(paths[0], paths[2]).status == 1


def test_compare_curves_overflows_of_separated_runs_are_no_fault(tmp_path: Path) -> None:
    header = {"format": "float16"}
    apart = 2.0 ** np.minimum(np.arange(STEPS) / 5 - 14, -5.0)
    skips = {"gradient_norm": np.where(np.arange(STEPS) == 50, np.inf, NORM), "loss": LOSS * (1 + apart)}
    old = write(tmp_path / "old", header, loss=LOSS, gradient_norm=NORM, loss_scale=SCALE)
    scale = np.where(np.arange(STEPS) > 50, 1024.0, SCALE)
    judgement = compare(old, write(tmp_path / "new", header, **skips, loss_scale=scale))
    assert judgement.status == 0
    assert "skip other steps" in judgement.notes[0]
    at_once = compare(old, write(tmp_path / "same", header, **(skips | {"loss": LOSS}), loss_scale=scale))
    assert at_once.status == 1


def test_compare_curves_with_controls_takes_their_spread_for_rounding(old: Path, tmp_path: Path) -> None:
    def drifting(name: str, size: float, seed: int) -> Path:
        noise = size * np.random.default_rng(seed).standard_normal(STEPS)
        return change(tmp_path / name, loss=LOSS * (1 + noise), gradient_norm=NORM * (1 + noise))

    controls = [drifting(f"control {seed}", 1e-3, seed) for seed in range(3)]
    near, far = drifting("near", 1e-3, 9), drifting("far", 1e-1, 9)
    assert compare(old, near).status == 1
    assert compare(old, near, controls=controls).status == 0
    assert compare(old, far, controls=controls).status == 1


def test_compare_curves_with_a_control_that_lacks_a_series_cannot_judge_it(old: Path, tmp_path: Path) -> None:
    controls = [write(tmp_path / f"control {index}", loss=LOSS) for index in range(2)]
    judgement = compare(old, change(tmp_path / "new.jsonl", gradient_norm=NORM * 1.01), controls=controls)
    assert judgement.status == 2
    assert "gradient norm is missing in a control" in judgement.sentence


def test_compare_curves_without_a_stated_format_asks_for_it(tmp_path: Path) -> None:
    def plain(name: str, values: np.ndarray) -> Path:
        path = tmp_path / name
        path.write_text("step,loss\n" + "".join(f"{step},{value!r}\n" for step, value in enumerate(values.tolist())))
        return path

    old, new = plain("a.csv", LOSS), plain("b.csv", LOSS * (1 + 1e-4 * AFTER))
    judgement = compare(old, new)
    assert judgement.status == 2
    assert "--precision" in judgement.sentence
    assert compare(old, new, "float32").status == 1
    assert compare(old, new, "bfloat16").status == 0


def _csv(path: Path, rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def _write_state(path: Path) -> None:
    history = [{"step": n, "loss": float(LOSS[n]), "grad_norm": float(NORM[n]), "epoch": 0.1} for n in range(3)]
    path.write_text(json.dumps({"log_history": [*history, {"step": 3, "train_runtime": 1.0, "train_loss": 9.0}]}))


def _write_metrics(path: Path) -> None:
    rows = [["epoch", "step", "train_loss", "val_loss"]]
    _csv(path, [*rows, *([0, n, LOSS[n], ""] for n in range(3)), [0, 3, "", 1.0]])


def _write_golden(path: Path) -> None:
    lines = [f"{n} {LOSS[n]} {NORM[n]}" for n in range(3)]
    path.write_text("\n".join(["# ngpu: 8", "# step loss grad_norm", *lines]) + "\n")


def _write_killed(path: Path) -> None:
    lines = [json.dumps({"step": n, "loss": float(LOSS[n])}) for n in range(3)]
    path.write_text("\n".join(lines) + '\n{"step": 3, "lo')


def _write_repeated(path: Path) -> None:
    _csv(path, [["step", "loss"], [0, 9.0], [1, 9.0], [0, LOSS[0]], [1, LOSS[1]], [2, LOSS[2]]])


def _write_events(path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(path))
    for n in range(3):
        value = Summary.Value(tag="train/loss", simple_value=float(np.float32(LOSS[n])))
        writer.add_event(Event(step=n, summary=Summary(value=[value])))
    writer.close()


@pytest.mark.parametrize(
    ("name", "writer"),
    [
        ("trainer_state.json", _write_state),
        ("metrics.csv", _write_metrics),
        ("golden.txt", _write_golden),
        ("killed.jsonl", _write_killed),
        ("repeated.csv", _write_repeated),
        ("events", _write_events),
    ],
)
def test_read_curve_reads_losses_by_step(tmp_path: Path, name: str, writer: object) -> None:
    assert callable(writer)
    writer(tmp_path / name)
    series = read_curve(tmp_path / name).series["loss"]
    assert series.steps.tolist() == [0, 1, 2]
    assert np.allclose(series.values, LOSS[:3], rtol=1e-7)


def test_read_curve_reads_nan_and_missing_steps(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"step": 1, "loss": 2.5}\n{"step": 5, "loss": NaN}\n{"step": 7, "lr": 0.1}\n')
    curve = read_curve(path)
    assert curve.series["loss"].steps.tolist() == [1, 5]
    assert math.isnan(curve.series["loss"].values[1])
    assert curve.series["learning_rate"].steps.tolist() == [7]


def test_read_curve_counts_entries_without_steps_from_chunk_to_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK", 2)
    (tmp_path / "run.jsonl").write_text("".join(f'{{"loss": {n}.5}}\n' for n in range(5)))
    assert read_curve(tmp_path / "run.jsonl").series["loss"].steps.tolist() == [0, 1, 2, 3, 4]


def test_read_curve_keeps_two_columns_of_one_name_apart(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    _csv(path, [["step", "loss", "train_loss"], [0, 1.5, 2.5], [1, 1.25, 2.25]])
    assert read_curve(path).series["train_loss"].values.tolist() == [2.5, 2.25]
    curve = read_curve(path, {"loss": "train_loss"})
    assert curve.series["loss"].values.tolist() == [2.5, 2.25]
    _write_state(tmp_path / "trainer_state.json")
    with pytest.raises(RecordError, match="no column 'nll'"):
        read_curve(tmp_path / "trainer_state.json", {"loss": "nll"})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", None, "no such file"),
        ("a.csv", "", "has no rows"),
        ("a.csv", "step,note\n1,good\n", "has no column of numbers"),
        ("a.csv", "step,loss\none,2.0\n", "has a step that is no number"),
        ("a.csv", "step,loss\nnan,2.0\n", "has a step that is no number"),
        ("a.jsonl", '{"step": 1, "loss": 2.0}\n[3]\n', "line 2: is no JSON object"),
        ("a.json", '{"model": 1}', "has no log_history"),
        ("a.jsonl", '{"step": 1\n{"step": 2}\n', "line 1: is no JSON object"),
    ],
)
def test_read_curve_refuses_in_one_line(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(RecordError, match=message):
        read_curve(tmp_path / name)


def test_curves_ends_with_the_status_and_writes_each_format(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, picture = change(tmp_path / "new.jsonl", learning_rate=RATE * 1.001), tmp_path / "curves.svg"

    def run(*arguments: object) -> tuple[int, str]:
        return main(["curves", *map(str, arguments)]), capsys.readouterr().out

    assert run(old, old)[0] == 0
    assert run(old, new, "--picture", picture)[0] == 1
    assert b"<svg" in picture.read_bytes()
    assert run(old, new, "--format", "markdown")[1].startswith("**not the same training: learning rate")
    assert run(old, new, "--series", "loss")[0] == 0
    assert run(old, new, "--control", old)[0] == 2
    for name, start in (("a", 10), ("b", 17)):
        _csv(tmp_path / name, [["step", "loss"], *([start + 100 * n, 1.0] for n in range(3))])
    status, text = run(tmp_path / "a", tmp_path / "b")
    assert status == 2
    assert "has 0 steps in common: 10 to 210 by 100, and 17 to 217 by 100" in text


def test_recorder_writes_what_curves_reads(tmp_path: Path) -> None:
    recorder = CurveRecorder(tmp_path / "run.jsonl", precision="bfloat16")
    for n in range(3):
        recorder.step(np.float32(LOSS[n]), batch={"x": np.full((4, 2), n), "y": [n]}, gradient_norm=NORM[n])
    before: Curve = read_curve(tmp_path / "run.jsonl")
    assert before.series["loss"].steps.tolist() == [0, 1]
    recorder.close()
    recorder.close()
    curve = read_curve(tmp_path / "run.jsonl")
    assert curve.format == "bfloat16"
    assert curve.versions["numpy"] == np.__version__
    assert curve.series["gradient_norm"].values.tolist() == NORM[:3].tolist()
    assert len(set(curve.batches.values())) == 3


def test_recorder_reads_a_batch_before_it_is_filled_anew(tmp_path: Path) -> None:
    buffer = np.zeros(8)
    for name, refill in (("kept", False), ("filled", True)):
        with CurveRecorder(tmp_path / name) as curve:
            curve.step(1.0, batch=buffer)
            buffer += refill
        buffer[:] = 0
    assert read_curve(tmp_path / "kept").batches == read_curve(tmp_path / "filled").batches
