"""Pairs of training curves, clean and faulty: they measure `conformance curves` and calibrate its model of growth.

All runs are PyTorch's, on scikit-learn's digits.
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np

from results.curves.growth import EARLY, FILE, NORMS, SCALES, UNITS, align, early_growth, later_growth, levels
from results.curves.judge import SETTINGS, compare_curves, cut, find_other_skip
from results.curves.reading import Curve, read_curve

LENGTHS = (20, 100, 500)
"""Numbers of steps."""
MODELS = ("relu", "gelu", "convolution", "norm", "attention")
OPTIMIZERS = {"sgd": 0.05, "adam": 2e-3, "adamw": 2e-3}
"""Learning rates by optimizer."""
FORMATS = ("float32", "float32", "float32", "bfloat16", "float16")
ROUNDINGS = ("rows", "micro-batches", "threads", "kernels", "implementation", "loss")
"""Changes of a run that change nothing but rounding."""
KINDS: Mapping[str, tuple[str, ...]] = {
    "factor-loss": ("factor",),
    "factor-gradient": ("factor", "fault", "non-finite"),
    "last-window": ("fault",),
    "clip-before-unscale": ("fault", "factor"),
    "schedule-shift": ("shift", "rate", "fault"),
    "scaler-not-restored": ("scale", "non-finite", "fault"),
    "optimizer-not-restored": ("fault",),
    "other-batch": ("data", "shift", "fault"),
    "moments-bfloat16": ("fault",),
    "rate": ("rate", "fault"),
    "other": ("fault", "factor", "rate", "scale", "data", "shift", "non-finite"),
}
"""Right kinds of verdicts for each planted fault. Where the cause is no recorded series, its effect is a fault."""
CAUSES = {
    "factor-gradient": "gradient_norm",
    "other-batch": "batch",
    "rate": "learning_rate",
    "schedule-shift": "learning_rate",
}
"""The series that shows the cause: where it is recorded, "fault" is not the right kind."""


MARGINS = {"bfloat16.norm": 1, "float16.norm": 1}
"""Bits that limits of norms in low formats, which few pairs have, get on top of 1 for early growth and 2 for later."""
LARGER_SUMS = 5
"""Bits for the first step: rounding grows with the root of the number of terms, and models of users have up to 2^10
times as many as these."""


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        rate: learning rate, in units of the optimizer's in `OPTIMIZERS`.
        rounding: a change of `ROUNDINGS`, "" for none.
        fault: a fault of `KINDS`, "" for none.
        start: first step with the fault.
        factor: factor of the loss or the gradient.
    """

    model: str
    optimizer: str
    format: str
    steps: int
    seed: int
    rate: float
    clip: float | None
    scheduled: bool
    rounding: str = ""
    fault: str = ""
    start: int = 0
    factor: float = 4.0
    series: tuple[str, ...] = ()


def draw(rng: np.random.Generator, steps: int, fault: str) -> tuple[Run, Run]:
    """Draw an old run, and a new one with this fault, or with a difference in rounding alone.

    Faults that may leave the training as it is, such as a factor of the gradient under Adam, are drawn with all series.
    """
    series = [(), ("gradient_norm", "learning_rate"), ("gradient_norm", "clipped_norm", "learning_rate", "loss_scale")]
    scaled = fault in ("clip-before-unscale", "scaler-not-restored")
    old = Run(
        model=str(rng.choice(MODELS)),
        optimizer="adam" if fault == "moments-bfloat16" else str(rng.choice(list(OPTIMIZERS))),
        format="float16" if scaled else str(rng.choice(FORMATS)),
        steps=steps,
        seed=int(rng.integers(1000)),
        rate=float(rng.choice([0.3, 1.0, 1.0, 3.0])),
        clip=1.0 if fault == "clip-before-unscale" or rng.random() < 0.3 else None,
        scheduled=fault == "schedule-shift" or rng.random() < 0.5,
        series=series[int(rng.integers(3))],
    )
    if fault == "scaler-not-restored" or (fault == "factor-gradient" and old.optimizer != "sgd"):
        old = replace(old, series=series[2])
    late = fault in ("scaler-not-restored", "optimizer-not-restored", "other-batch")
    return old, replace(
        old,
        fault=fault,
        rounding=str(rng.choice(ROUNDINGS)) if not fault or rng.random() < 0.5 else "",
        start=int(rng.integers(steps // 4, 3 * steps // 4)) if late else 0,
        factor=float(rng.choice([2.0, 0.5, 4.0, 8.0, 3.0, 2**0.5])),
    )


def train(run: Run) -> list[dict[str, Any]]:
    """Return one entry for each step, as the recorder writes it."""
    import torch
    from torch import nn

    torch.set_num_threads(2 if run.rounding == "threads" else 1)
    torch.manual_seed(run.seed)
    model = _model(run.model)
    rate = run.rate * OPTIMIZERS[run.optimizer] * (1.001 if run.fault == "rate" else 1)
    options: dict[str, Any] = {"foreach": False} if run.rounding == "implementation" else {}
    options |= {"momentum": 0.9} if run.optimizer == "sgd" else {}
    classes = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    optimizer = classes[run.optimizer](model.parameters(), rate, **options)
    scaler = torch.amp.GradScaler("cpu", enabled=run.format == "float16", init_scale=2.0**12, growth_interval=20)
    images, labels = _digits()
    order = np.random.default_rng(run.seed)
    rows = np.concatenate([order.permutation(len(images)) for _ in range(1 + 32 * (run.steps + 1) // len(images))])
    shuffled = np.random.default_rng(run.seed + 1)
    entries = []
    for step in range(run.steps):
        faulty = run.fault if step >= run.start else ""
        applied = step + (faulty == "schedule-shift")
        factor = min(1, (applied + 1) / 10) * (1 + np.cos(np.pi * applied / run.steps)) / 2 if run.scheduled else 1
        for group in optimizer.param_groups:
            group["lr"] = rate * factor
        if faulty == "scaler-not-restored" and step == run.start:
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=20)
        if faulty == "optimizer-not-restored" and step == run.start:
            optimizer.state.clear()
        first = 32 * (step + (faulty == "other-batch"))
        batch = rows[first : first + (20 if step % 8 == 7 else 32)]
        if run.rounding == "rows":
            batch = shuffled.permutation(batch)
        optimizer.zero_grad()
        total = 0.0
        kernels = torch.backends.mkldnn.flags(enabled=False) if run.rounding == "kernels" else nullcontext()
        for part in np.array_split(batch, 2 if run.rounding == "micro-batches" and run.model != "norm" else 1):
            low = torch.autocast("cpu", getattr(torch, run.format), enabled=run.format != "float32")
            with kernels, low:
                outputs = model(images[part])
            if run.rounding == "loss":
                mean = -torch.log_softmax(outputs.float(), 1)[range(len(part)), labels[part]].mean()
            else:
                mean = nn.functional.cross_entropy(outputs.float(), labels[part])
            loss = mean * len(part) / (32 if faulty == "last-window" else len(batch))
            total += mean.item() * len(part) / len(batch) * (run.factor if faulty == "factor-loss" else 1)
            scaler.scale(loss * run.factor if faulty == "factor-gradient" else loss).backward()
        scale = scaler.get_scale()
        if faulty != "clip-before-unscale":
            scaler.unscale_(optimizer)
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), run.clip or 1e9))
        if faulty == "clip-before-unscale":
            scaler.unscale_(optimizer)
            norm /= scale
        clipped = float(nn.utils.get_total_norm([p.grad for p in model.parameters()]))
        scaler.step(optimizer)
        scaler.update()
        if faulty == "moments-bfloat16":
            for state in optimizer.state.values():
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name].copy_(state[name].bfloat16().float())
        measured = {"gradient_norm": norm, "clipped_norm": clipped, "learning_rate": rate * factor, "loss_scale": scale}
        entries.append({"step": step, "loss": total} | {name: measured[name] for name in run.series})
    return entries


def _digits() -> tuple[Any, Any]:
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    return torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target)


def _model(name: str) -> Any:
    from torch import nn

    if name == "attention":
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        head = (nn.Flatten(), nn.Linear(256, 10))
        return nn.Sequential(nn.Unflatten(1, (8, 8)), nn.Linear(8, 32), layer, *head)
    if name == "convolution":
        first = (nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        return nn.Sequential(*first, nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))
    hidden = {
        "relu": (nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()),
        "gelu": (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)),
        "norm": (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()),
    }[name]
    return nn.Sequential(*hidden, nn.Linear(64, 10))


def write_pair(folder: Path, old: Run, new: Run) -> None:
    """Write old.jsonl, new.jsonl and truth.json."""
    folder.mkdir(parents=True)
    texts = []
    for name, run in (("old", old), ("new", new)):
        texts.append("".join(json.dumps(line) + "\n" for line in [{"curve": 1, "format": run.format}, *train(run)]))
        (folder / f"{name}.jsonl").write_text(texts[-1], "utf-8")
    truth = {"clean": not new.fault, "kind": new.fault, "length": new.steps, "format": new.format, "new": asdict(new)}
    truth["visible"] = texts[0] != texts[1]
    (folder / "truth.json").write_text(json.dumps(truth), "utf-8")


def write_pairs(folder: Path, count: int, seed: int, *, faulty: bool) -> None:
    """Write pairs that are all clean or all faulty, evenly over lengths and kinds."""
    rng, kinds = np.random.default_rng(seed), [kind for kind in KINDS if kind != "other"]
    for index in range(count):
        old, new = draw(rng, LENGTHS[index % 3], kinds[index // 3 % len(kinds)] if faulty else "")
        write_pair(folder / f"{'fault' if faulty else 'clean'}-{index:04}", old, new)


def measure_growth(folders: list[Path]) -> str:
    """Return limits for `results.curves.growth`: the largest growth of clean pairs in each format."""
    largest: dict[tuple[str, str, str], float] = defaultdict(float)
    for folder in folders:
        truth, old, new = _read(folder)
        skip = find_other_skip(old.series, new.series, truth["format"])
        old, new = (old, new) if skip is None else (cut(old, skip), cut(new, skip))
        for name in set(old.series) - set(SETTINGS):
            curves = align(old.series[name], new.series[name])
            kind, level = (
                f"{truth['format']}.{'norm' if name in NORMS else 'loss'}",
                levels(curves, UNITS[truth["format"]]),
            )
            largest[kind, "first", ""] = max(largest[kind, "first", ""], float(curves.differences[0]))
            for part, measured in (("early", early_growth(level, 1)), ("later", later_growth(level, 1))):
                for k, bits in measured.items():
                    key = (kind, part, str(k))
                    largest[key] = max(largest[key], float(bits.max(initial=0.0)))
    lines = [
        "# Made by `python -m tools curves --calibrate`: log2 of differences, and bits of growth by number of updates."
    ]
    for kind in (f"{format_name}.{part}" for format_name in UNITS for part in ("loss", "norm")):
        lines += ["", f"[{kind}]", f"first = {math.log2(largest[kind, 'first', '']) + LARGER_SUMS:.1f}"]
        for part, scales in (("early", EARLY), ("later", SCALES)):
            bits = np.maximum.accumulate([largest[kind, part, str(k)] for k in scales]) + (1 if part == "early" else 2)
            bits += MARGINS.get(kind, 0)
            lines += ["", f"[{kind}.{part}]", *(f"{k} = {b:.1f}" for k, b in zip(scales, bits, strict=True))]
    return "\n".join(lines) + "\n"


def _read(folder: Path) -> tuple[Mapping[str, Any], Curve, Curve]:
    truth = json.loads((folder / "truth.json").read_text("utf-8"))
    return truth, read_curve(folder / "old.jsonl"), read_curve(folder / "new.jsonl")


def judge_pairs(folders: list[Path]) -> str:
    """Return a Markdown table: by kind and length, how many pairs are called worse, and how many by the right kind."""
    counts: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0]))
    for folder in folders:
        truth, old, new = _read(folder)
        if not truth["clean"] and not truth["visible"]:
            continue
        judgement = compare_curves(old, new, format_name=truth["format"])
        kind = truth["kind"] or "clean"
        right = judgement.status == 1 and judgement.verdicts[0].kind in _right_kinds(kind, old, new)
        if (judgement.status == 1) == truth["clean"] or right != (not truth["clean"]):
            click.echo(f"{folder.name}, {kind}, {truth['format']}: {judgement.sentence}", err=True)
        for group in {kind, "clean" if truth["clean"] else "all faults"}:
            for length in (truth["length"], 0):
                cell = counts[group][length]
                cell[:] = cell[0] + 1, cell[1] + (judgement.status == 1), cell[2] + right
    lengths = sorted({length for row in counts.values() for length in row if length})
    lines = ["| | " + " | ".join(f"{length} steps" for length in lengths) + " | all | right kind |"]
    lines.append("|---|" + "---|" * (len(lengths) + 2))
    for kind in sorted(counts, key=lambda name: (name in ("clean", "all faults"), name)):
        row = counts[kind]
        cells = [f"{row[length][1]} of {row[length][0]}" for length in (*lengths, 0)]
        lines.append(f"| {kind} | " + " | ".join(cells) + f" | {'' if kind == 'clean' else row[0][2]} |")
    return "\n".join(lines) + "\n"


def _right_kinds(kind: str, old: Curve, new: Curve) -> set[str]:
    """Return the right kinds of a fault; a recorded cause that differs has to be named."""
    cause = CAUSES.get(kind, "")
    differs = old.batches != new.batches if cause == "batch" else False
    if cause in old.series and cause in new.series:
        differs = not np.array_equal(old.series[cause].values, new.series[cause].values)
    return set(KINDS.get(kind, ())) - ({"fault"} if differs else set())


@click.command()
@click.option("--count", default=200, show_default=True, help="Number of pairs, half of them clean.")
@click.option("--seed", default=1, show_default=True, help="Seed of the pairs.")
@click.option("--calibrate", is_flag=True, help="Make clean pairs alone, and write growth.toml from them.")
@click.option(
    "--pairs", type=click.Path(path_type=Path), help="Judge pairs that are there: NAME/{old,new}.jsonl, truth.json."
)
@click.option("--keep", type=click.Path(path_type=Path), help="Folder for the pairs; without it they are deleted.")
def main(count: int, seed: int, calibrate: bool, pairs: Path | None, keep: Path | None) -> None:
    """Measure `conformance curves` on pairs of real runs, and print a table of what it calls worse."""
    with TemporaryDirectory() as temporary:
        folder = pairs or keep or Path(temporary)
        if pairs is None:
            write_pairs(folder, count if calibrate else count // 2, seed, faulty=False)
        if pairs is None and not calibrate:
            write_pairs(folder, count // 2, seed, faulty=True)
        folders = sorted(path.parent for path in folder.glob("*/truth.json"))
        if calibrate:
            FILE.write_text(measure_growth(folders), "utf-8")
        else:
            click.echo(judge_pairs(folders), nl=False)


if __name__ == "__main__":
    main()
