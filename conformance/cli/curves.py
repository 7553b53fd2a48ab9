"""`conformance curves`: whether two runs of any program are the same training."""

from pathlib import Path

import click

from conformance.cli.options import OUTPUT, PATH, put
from results.record.reading import pause_collector


@click.command()
@click.argument("old", type=PATH, metavar="OLD")
@click.argument("new", type=PATH, metavar="NEW")
@click.option(
    "--control",
    "controls",
    multiple=True,
    type=PATH,
    metavar="PATH",
    help="Another run of the old code with other rounding (threads, kernels, GPU); give it twice or more often.",
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Format of matrix products, where the files do not say it.",
)
@click.option(
    "--series",
    multiple=True,
    metavar="NAME[=COLUMN]",
    help="Compare this series alone, may be given several times; =COLUMN names its column or tag in the files.",
)
@click.option("--format", "style", type=click.Choice(["table", "markdown"]), default="table", help="Output format.")
@OUTPUT
@click.option("--picture", type=PATH, metavar="FILE", help="Draw curves, differences and limits (.svg or .png).")
@pause_collector()
def curves(
    old: Path,
    new: Path,
    controls: tuple[Path, ...],
    precision: str | None,
    series: tuple[str, ...],
    style: str,
    output: Path | None,
    picture: Path | None,
) -> int:
    """Tell whether two runs of any program are the same training: identical, rounding, or from which step on not, by a
    factor, a shift, another learning rate, other data, or a fault.

    OLD and NEW are JSON lines (as `conformance.curves` writes them), CSV such as Lightning's metrics.csv, lines "step
    loss", trainer_state.json of transformers, or a folder of TensorBoard.

    \b
    conformance curves before.jsonl after.jsonl
    conformance curves before.csv after.csv --series loss=train/ce --precision bfloat16 --picture curves.svg
    conformance curves old/trainer_state.json new/trainer_state.json --control a.json --control b.json

    Exit status: 0, the same training; 1, more than rounding differs; 2, it cannot be judged.
    """
    from results.curves import show  # imports NumPy and SciPy
    from results.curves.judge import compare_curves
    from results.curves.reading import read_curve

    if len(controls) == 1:
        raise click.UsageError("one control shows no spread: give --control twice or more often")
    columns = {name: column for name, _, column in (one.partition("=") for one in series) if column}
    runs = [read_curve(path, columns) for path in (old, new, *controls)]
    names = [one.partition("=")[0] for one in series]
    judgement = compare_curves(runs[0], runs[1], runs[2:], precision or "", names)
    write = show.to_text if style == "table" else show.to_markdown
    put(write(judgement, runs[0], runs[1]), output)
    if picture is not None:
        show.draw(judgement, picture)
        click.echo(f"picture: {picture}", err=True)
    return judgement.status
