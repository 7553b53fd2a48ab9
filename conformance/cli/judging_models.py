"""`conformance judge-model`: one model without an adapter, or all heads of transformers."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from conformance.cli.options import PATH, FiniteRange, put
from conformance.models import rendering
from conformance.models.judgements import Sweep, load, save
from conformance.models.workers import CannotJudge, Pool, judge_one
from results.record.files import one_line

ALL = "transformers"


@click.command("judge-model")
@click.argument("model", required=False, default="", metavar="[MODEL]")
@click.option("--all", "library", type=click.Choice([ALL]), help="Judge every head class of this library.")
@click.option(
    "--json", "record", type=PATH, metavar="FILE", help="Also write the results to FILE (NAME.json or .json.gz)."
)
@click.option("--output", type=PATH, metavar="FILE", help="Write the table of --all to FILE instead of printing it.")
@click.option("--against", type=PATH, metavar="FILE", help="Show what changed since this file of --json.")
@click.option("--only", metavar="WORDS", help="With --all: classes whose name has one of these words, comma-separated.")
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Number of processes.")
@click.option("--each", type=FiniteRange(1), default=60.0, show_default=True, help="Seconds for a model.")
@click.option("--within", type=FiniteRange(1), default=600.0, show_default=True, help="Seconds for all models.")
def judge_model(
    model: str,
    library: str | None,
    record: Path | None,
    output: Path | None,
    against: Path | None,
    only: str | None,
    workers: int,
    each: float,
    within: float,
) -> int:
    """Check that gradient accumulation, recomputation, precision scopes and resuming leave the training of MODEL as it
    is. MODEL is transformers:CLASS, built from a tiny random configuration and trained by its Trainer, or
    PACKAGE.MODULE:FACTORY, a callable that returns a torch.nn.Module or (module, batch).

    \b
    conformance judge-model transformers:BertForSequenceClassification
    conformance judge-model my_package.models:make
    conformance judge-model --all transformers --json heads.json.gz

    With --all it judges every head class of the installed transformers and groups failures by cause.

    Exit status: 0, no check failed but as a finding describes, or with --against none that passed before; 1, one did;
    2, the model cannot be judged.
    """
    if bool(model) == bool(library):
        raise click.UsageError("name a MODEL, or give --all transformers")
    former = load(against) if against is not None else None
    try:
        sweep = _one(model, each) if model else _all(workers, each, within, only, output)
    except CannotJudge as error:
        raise click.ClickException(one_line(str(error))) from None
    if record is not None:
        save(sweep, record)
    if former is not None:
        for line in rendering.changes(former, sweep):
            click.echo(line)
        return 1 if rendering.worse(former, sweep) else 0
    return 1 if sweep.new() else 0


def _one(model: str, limit_s: float) -> Sweep:
    if not all(model.partition(":")):
        raise click.BadParameter(
            f"got {model!r}, want transformers:CLASS or PACKAGE.MODULE:FACTORY", param_hint="MODEL"
        )
    versions, judged = judge_one(model, ("bfloat16", "float16"), limit_s)
    if judged.not_run:
        raise CannotJudge(f"{model}: {judged.not_run}")
    for line in rendering.one(judged, versions):
        click.echo(line)
    return Sweep(versions, (judged,), seconds=judged.seconds)


def _all(workers: int, limit_s: float, within_s: float, only: str | None, output: Path | None) -> Sweep:
    pool = Pool(workers, limit_s, within_s)
    versions, names = pool.names()
    words = only.split(",") if only else [""]
    chosen = [f"{ALL}:{name}" for name in names if any(word in name for word in words)]
    if not chosen:
        raise click.BadParameter(
            f"no class of transformers {versions[ALL]} has {only} in its name", param_hint="--only"
        )
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("heads", total=len(chosen))
        sweep = pool.sweep(versions, chosen, lambda _: bar.advance(task))
    put("\n".join(rendering.table(sweep)) + "\n", output)
    return sweep
