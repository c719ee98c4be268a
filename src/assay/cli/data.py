"""`assay data`: adopt, build, describe and split datasets."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from assay.data.dataset.index import Progress
    from assay.data.dataset.split import DatasetView
    from assay.records.dataset import DatasetManifest

BAR = 40


@click.group()
def data() -> None:
    """Adopt Parquet as it is, or build a dataset from raw text; look at it; see how it splits."""


@data.command()
@click.argument("source")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder of the manifest; the shards stay where they are.",
)
@click.option("--name", help="For people; by default the source's last part.")
@click.option("--no-label", is_flag=True, help="The rows need no 'label' column.")
@click.option("--workers", default=2, show_default=True, help="Shards read at once.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def index(source: str, out: Path, name: str | None, no_label: bool, workers: int, as_json: bool) -> None:
    """Adopt all *.parquet under SOURCE, a folder or s3://bucket/prefix, without converting it.

    Reads every shard once: digests of files and column chunks, row groups, token lengths, label balance,
    missing rates. Any file that training could not read is an error now.
    """
    from assay.data.dataset.index import index_dataset

    manifest = index_dataset(
        source, out, name=name, needs_label=not no_label, workers=workers, progress=_progress("indexing")
    )
    _print(manifest, out, as_json=as_json)


@data.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder of the dataset."
)
@click.option("--tokenizer", required=True, help="A tokenizer.json, or a folder that holds one.")
@click.option("--text", default="text", show_default=True, help="Field with the text.")
@click.option("--label", default="label", show_default=True, help="Field with the label, 0 or 1.")
@click.option("--no-label", is_flag=True, help="The rows have no label.")
@click.option("--metadata", multiple=True, help="A field to keep as a column; may be given more than once.")
@click.option("--key", help="Field kept as 'shard_id', by whose hash rows can be split.")
@click.option("--time", help="Field with an ISO 8601 time, kept as 'created_at'.")
@click.option("--max-tokens", default=2048, show_default=True, help="Longer rows are cut at their end.")
@click.option("--rows-per-shard", default=100_000, show_default=True)
@click.option("--workers", default=2, show_default=True, help="Processes.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def build(
    sources: tuple[Path, ...],
    out: Path,
    tokenizer: str,
    text: str,
    label: str,
    no_label: bool,
    metadata: tuple[str, ...],
    key: str | None,
    time: str | None,
    max_tokens: int,
    rows_per_shard: int,
    workers: int,
    as_json: bool,
) -> None:
    """Tokenise SOURCES (JSON lines, one object a row) into Parquet shards, and index them.

    If it is interrupted, the same command goes on where it stopped.
    """
    from assay.data.dataset.build import build_dataset
    from assay.data.dataset.fields import BuildConfig

    config = BuildConfig(
        tokenizer=tokenizer,
        text_field=text,
        label_field=None if no_label else label,
        metadata_fields=metadata,
        key_field=key,
        time_field=time,
        max_tokens=max_tokens,
        rows_per_shard=rows_per_shard,
    )
    manifest = build_dataset(sources, out, config, workers=workers, progress=_progress("building"))
    _print(manifest, out, as_json=as_json)


@data.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def show(dataset: Path, as_json: bool) -> None:
    """What DATASET (a manifest's folder) holds."""
    from assay.data.dataset.dataset import Dataset

    _print(Dataset.open(dataset).manifest, dataset, as_json=as_json)


@data.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--by", "column", default="shard_id", show_default=True, help="Column that decides.")
@click.option(
    "--fraction", default=0.1, show_default=True, help="Share of the column's values to hold out, by hash."
)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--from",
    "moment",
    type=click.DateTime(),
    help="Hold out the rows from this moment on (UTC), instead of by hash.",
)
def split(dataset: Path, column: str, fraction: float, seed: int, moment: datetime | None) -> None:
    """How DATASET would split: by hash of a key or by time, never by row at random, so that nothing leaks.

    Prints the lines to put under 'data:' in a recipe.
    """
    from assay.data.dataset.dataset import Dataset
    from assay.data.dataset.split import HashSplit, TimeSplit, split_view

    opened = Dataset.open(dataset)
    config: HashSplit | TimeSplit
    if moment is not None:
        config = TimeSplit(type="time", column=column, validation_from=moment)
    else:
        config = HashSplit(column=column, validation_fraction=fraction, seed=seed)
    for part in ("train", "validation"):
        view = split_view(opened, config, part)
        click.echo(f"{part:<11} {_side(view)}")
    fields = ", ".join(f"{key}: {value}" for key, value in config.model_dump(mode="json").items())
    click.echo(f"\ndata:\n  dataset: {dataset}\n  split: {{{fields}}}")


def _side(view: "DatasetView") -> str:
    total = view.dataset.manifest.num_rows
    rows = int(view.num_rows.sum())
    line = f"{rows:>12,} rows  {rows / total:6.1%}"
    if "label" not in view.dataset.manifest.columns:
        return line
    positive = sum(
        sum(view.read(group, ["label"])["label"].to_pylist())
        for group in range(len(view.num_rows))
        if view.num_rows[group]
    )
    return f"{line}  label 1: {positive / max(1, rows):.1%}"


def _progress(verb: str) -> "Progress":
    import sys

    def show_progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            filled = BAR * done // total
            end = "\n" if done == total else ""
            click.echo(
                f"\r{verb} {'━' * filled}{' ' * (BAR - filled)} {done}/{total} shards{end}", nl=False, err=True
            )

    return show_progress


def _print(manifest: "DatasetManifest", folder: Path, *, as_json: bool) -> None:
    if as_json:
        click.echo(manifest.to_json())
        return
    from rich.console import Console
    from rich.table import Table

    from assay.base.units import bytes_text, count_text

    console = Console(highlight=False)
    console.print(f"[bold]{manifest.name}[/bold]  fingerprint {manifest.fingerprint[:16]}  in {folder}")
    num_bytes = sum(shard.num_bytes for shard in manifest.shards)
    console.print(
        f"{manifest.num_rows:,} rows, {count_text(manifest.num_tokens)} tokens, {bytes_text(num_bytes)} in "
        f"{len(manifest.shards):,} shards and {manifest.num_row_groups:,} row groups under {manifest.source_url}"
    )
    for label, count in sorted(manifest.label_counts.items()):
        console.print(f"label {label}: {count:,} rows ({count / manifest.num_rows:.1%})")
    lengths = manifest.lengths
    console.print(
        f"\ntokens a row: mean {lengths.mean:.0f}, median {lengths.p50:.0f}, 95% {lengths.p95:.0f}, "
        f"99% {lengths.p99:.0f}, max {lengths.max}"
    )
    most = max(lengths.histogram_rows)
    for edge, rows in zip(lengths.histogram_edges, lengths.histogram_rows, strict=False):
        console.print(f"{edge:>7} {'█' * round(BAR * rows / most)} {rows:,}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("column", "type", "missing", "values"):
        table.add_column(
            heading, justify="right" if heading == "missing" else "left", no_wrap=heading == "column"
        )
    for column in manifest.column_profiles:
        if column.top_values:
            values = ", ".join(
                f"{value} {count / manifest.num_rows:.0%}" for value, count in column.top_values[:4]
            )
        elif column.minimum is not None:
            mean = f", mean {column.mean:.3g}" if column.mean is not None else ""
            values = f"{column.minimum} to {column.maximum}{mean}"
        else:
            values = ""
        table.add_row(column.name, column.type, f"{column.missing_rate:.1%}", values)
    console.print()
    console.print(table)
