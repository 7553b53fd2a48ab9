"""`conformance judge-model`: one model without an adapter, or all heads of transformers."""

from pathlib import Path

import click

from conformance.cli.options import PATH, FiniteRange, put
from conformance.cli.running import import_from_here
from results.record.files import one_line

LIBRARY = "transformers"


@click.command("judge-model")
@click.argument("model", required=False, default="", metavar="[MODEL]")
@click.option("--all", "library", type=click.Choice([LIBRARY]), help="Judge every head class of this library.")
@click.option("--only", metavar="A,B", help="With --all: classes whose name has one of these parts.")
@click.option("--record", "path", type=PATH, metavar="FILE", help="Write the record to FILE (NAME.json or .json.gz).")
@click.option("--output", type=PATH, metavar="FILE", help="Write the table of --all to FILE instead of printing it.")
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="Number of processes.")
@click.option("--limit", type=FiniteRange(1), default=60.0, show_default=True, help="Seconds for a model.")
def judge_model(
    model: str, library: str | None, only: str | None, path: Path | None, output: Path | None, jobs: int, limit: float
) -> int:
    """Check that gradient accumulation, recomputation, precision scopes and resuming leave the training of MODEL as it
    is. MODEL is transformers:CLASS, built from a tiny random configuration and trained by its Trainer, or
    PACKAGE.MODULE:FACTORY, a callable that returns a torch.nn.Module or (module, batch).

    \b
    conformance judge-model transformers:BertForSequenceClassification
    conformance judge-model my_package.models:make
    conformance judge-model --all transformers --record new.json.gz
    conformance compare results/heads/transformers-5.24.0.json.gz new.json.gz

    With --all it judges every head class of the installed transformers and groups failures by cause.

    Exit status: 0, no check failed but as a finding describes; 1, one did; 2, the model cannot be judged.
    """
    if bool(model) == bool(library):
        raise click.UsageError("name a MODEL, or give --all transformers")
    if model and not all(model.partition(":")):
        raise click.BadParameter(
            f"got {model!r}, want transformers:CLASS or PACKAGE.MODULE:FACTORY", param_hint="MODEL"
        )
    from conformance.models import judging
    from results.record.reading import write

    import_from_here()
    every = judging.ModelRequest(only=tuple(only.split(",")) if only else ("",), limit_s=limit)
    one = judging.ModelRequest(model, formats=("bfloat16", "float16"), limit_s=limit)
    try:
        record = judging.judge(one if model else every, 1 if model else jobs)
    except judging.CannotJudge as error:
        raise click.ClickException(one_line(str(error))) from None
    if model and (problem := judging.problem_of(record)):
        raise click.ClickException(one_line(f"{model}: {problem}"))
    if path is not None:
        write(path, record)
    lines = judging.show_model(record) if model else judging.table(record)
    put("".join(f"{line}\n" for line in lines), None if model else output)
    return int(any(verdict.outcome.bad for verdict in record.verdicts))
