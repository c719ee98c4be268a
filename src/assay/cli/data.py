"""`assay data`: index, build, describe, split, score and compare datasets."""

import shlex
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.cli.command import CommandGroup
from assay.cli.parameters import (
    DATASET,
    FOLDER,
    SOURCE,
    SOURCE_PATH,
    combined,
    current_home,
    force_option,
    is_forced,
    is_on_command_line,
    jobs_option,
    json_option,
    print_view,
    run_and_step,
    seed_option,
)

if TYPE_CHECKING:
    from assay.data.dataset.fields import BuildConfig
    from assay.data.dataset.raw.propose import Proposal, RequestedFields
    from assay.data.dataset.split import SplitConfig
    from assay.data.pools.cluster import Engine
    from assay.data.pools.pool import Pool
    from assay.records.dataset import DatasetManifest


SHOWN_ORDER = {"window_rows": 4096, "shuffle_radius_windows": 3, "lanes": 8, "global_batch_size": 64}
"""Keys of the loader whose order 'assay data show' measures."""
STORE_TIMEOUT_S = 15.0
"""Retry budget for the store; short, because only the order of the rows is measured."""


_MODULES = {
    "index": ("assay.cli.data", "Index Parquet files where they are."),
    "build": ("assay.cli.data", "Tokenize texts into Parquet shards, and index them."),
    "show": ("assay.cli.data", "Describe a dataset and the order of its rows."),
    "split": ("assay.cli.data", "Show how a dataset would be split."),
    "hold-out": ("assay.cli.data", "Write the held-out rows as a dataset of their own."),
    "score": ("assay.cli.data", "Add a reference model's log-probabilities, for DPO."),
    "diff": ("assay.cli.data", "Show what changed between two datasets."),
}


@click.group(cls=CommandGroup, modules=_MODULES)
def data() -> None:
    """Index Parquet files as they are, or build a dataset from raw text; describe, split and compare datasets."""


_pool_options = combined(
    click.option(
        "--on",
        type=click.Choice(["here", "spark", "ray"]),
        default="here",
        help="Where the work is done: on this machine, or by the workers of a Spark or Ray cluster.",
    ),
    click.option(
        "--cluster",
        metavar="ADDRESS",
        help="Spark's master, e.g. spark://HOST:7077, or Ray's address.  [default: that of the engine's own "
        "configuration]",
    ),
)


def _pool(
    on: str, cluster: str | None, jobs: int, *, reads: Iterable[str | Path | None], writes: Path | None = None
) -> "AbstractContextManager[Pool | None]":
    """Return the pool of a cluster; None for the default of each command, on this machine."""
    if on == "here":
        if cluster is not None:
            raise ConfigError(f"--cluster {cluster} needs an engine: add --on spark or --on ray.")
        return nullcontext()
    from assay.data.pools.cluster import cluster_pool

    paths = [Path(path) for path in reads if path is not None and "://" not in str(path)]
    return cluster_pool(cast("Engine", on), cluster, jobs, reads=paths, writes=writes)


def _absolute(path: str | None) -> str | None:
    """Return the absolute path of a file; other names (`new:8000`, `chatml`) unchanged."""
    return path if path is None or not Path(path).exists() else str(Path(path).absolute())


@data.command(sections={"Clusters": ("on", "cluster")})
@click.argument("source", type=SOURCE)
@click.option("--out", type=FOLDER, required=True, help="Folder for the manifest; the shards stay where they are.")
@force_option
@click.option("--name", help="Display name of the dataset; by default the last part of SOURCE.")
@click.option("--no-label", is_flag=True, help="Accept rows without a 'label' column.")
@jobs_option(2, "Number of shards read at the same time; on a cluster at least one per slot.")
@_pool_options
@json_option
def index(
    source: str, out: Path, name: str | None, no_label: bool, jobs: int, on: str, cluster: str | None, as_json: bool
) -> None:
    """Index all *.parquet files under SOURCE, a folder or s3://bucket/prefix, without converting them.

    Reads every shard once and records digests of files and column chunks, row groups, token lengths, label
    balance and missing rates. Files that training could not read are reported as errors now. Files and folders
    whose names start with _ or . are skipped, as in Spark.
    """
    from assay.data.dataset.index import index_dataset
    from assay.reporting.terminal.terminal import show_progress

    with _pool(on, cluster, jobs, reads=[source if "://" in source else Path(source).resolve()]) as pool:
        manifest = index_dataset(
            source,
            out,
            name=name,
            needs_label=not no_label,
            workers=jobs,
            pool=pool,
            progress=partial(show_progress, "indexing", unit=" shards"),
            replacing=partial(_check_replaceable, out),
        )
    _print(manifest, out, as_json=as_json)


_BUILD_SECTIONS = {
    "Fields": (
        "text",
        "label",
        "label_kind",
        "no_label",
        "metadata",
        "key",
        "time",
    ),
    "Language models": (
        "chat_template",
        "chat_date",
        "end_token",
        "control_tokens",
    ),
    "Rows": (
        "drop",
        "rows_per_shard",
        "rows_per_group",
    ),
    "Clusters": ("on", "cluster"),
}


@data.command(sections=_BUILD_SECTIONS)
@click.argument("sources", nargs=-1, required=True, type=SOURCE_PATH)
@click.option("--out", type=FOLDER, required=True, help="Folder for the dataset.")
@force_option
@click.option(
    "--format",
    type=click.Choice(["text", "chat", "pairs", "prompts"]),
    help="Format of rows for a language model: text; chat (messages, or prompt and completion); pairs (chosen and "
    "rejected); prompts (with the fields that graders read).  [default: labelled texts]",
)
@click.option(
    "--chat-template",
    help="Chat template: a .jinja file, or chatml.  [default: the template in the tokenizer's folder]",
)
@click.option("--chat-date", help="Current date for templates that use it, e.g. 2026-11-22.")
@click.option(
    "--end-token", help="Token appended to each text or completion; '' for none.  [default: the tokenizer's eos_token]"
)
@click.option(
    "--control-tokens",
    type=click.Choice(["refuse", "text", "keep"]),
    default="refuse",
    help="How to treat control tokens like <|im_end|> in the texts: report an error (refuse), encode them as text, "
    "or keep them as tokens for rows that are rendered already.",
)
@click.option(
    "--tokenizer",
    help="Tokenizer: a tokenizer.json, a folder or package:NAME/FOLDER with one, or new:8000 to train one.",
)
@click.option("--text", help="Name of the text field.  [default: text]")
@click.option("--label", help="Name of the label field.  [default: label]")
@click.option(
    "--label-kind",
    type=click.Choice(["auto", "binary", "classes", "number"]),
    default="auto",
    help="Type of the labels: binary (0 and 1), class names, or a number; auto infers it from all labels.",
)
@click.option("--no-label", is_flag=True, help="The rows have no label.")
@click.option(
    "--metadata",
    multiple=True,
    help="Field to keep as a metadata column, which the model may read together with the text. May be repeated.",
)
@click.option(
    "--group-by",
    "key",
    help="Field whose equal values stay on one side of a split, kept as 'shard_id'.  [default: the text]",
)
@click.option("--at", "time", help="Field with the time in ISO 8601, kept as 'created_at'.")
@click.option(
    "--drop",
    multiple=True,
    type=click.Choice(["doubled", "conflicting", "unusable"]),
    help="Drop duplicates of earlier texts (doubled), all rows of a text with several labels (conflicting), or rows "
    "that would stop the build (unusable): invalid JSON or UTF-8, CSV rows with a wrong number of values, and rows "
    "without anything to train on. The manifest counts dropped rows. May be repeated.",
)
@click.option("--max-tokens", default=2048, help="Maximum row length in tokens; longer rows are cut or dropped.")
@click.option("--rows-per-shard", default=100_000, help="Number of rows in each Parquet file.")
@click.option("--rows-per-group", default=1_000, help="Number of rows in each row group, the unit that training reads.")
@jobs_option(2, "Number of processes; on a cluster at least one per slot.")
@_pool_options
@json_option
def build(
    sources: tuple[Path, ...],
    out: Path,
    format: str | None,
    jobs: int,
    on: str,
    cluster: str | None,
    as_json: bool,
    no_label: bool,
    **fields: Any,
) -> None:
    """Tokenize SOURCES into Parquet shards and index them.

    A source is a Parquet, Arrow, CSV, TSV or JSON lines file, or a .txt file with one row per line; any other
    file, or a quoted pattern ('notes/**/*.md'), gives one row per file; a folder of such files, or a dataset
    saved by the 'datasets' library. A row that is a whole file has the fields 'text', 'path' and 'folder'.

    With --format, rows have the fields that TRL and OpenAI's fine-tuning use: text; messages, or prompt and
    completion; prompt, chosen and rejected, or input, preferred_output and non_preferred_output; prompt and the
    fields that a grader reads.

    Fields that are not named are proposed, and confirmed on a terminal. All rows are checked before the first
    shard is written. An interrupted build continues when the same command runs again.
    """
    from assay.data.dataset.build import build_dataset
    from assay.data.dataset.raw.propose import RequestedFields, propose
    from assay.reporting.terminal.data import print_build
    from assay.reporting.terminal.terminal import show_progress

    if on != "here":  # workers have another working directory
        sources, out = tuple(source.absolute() for source in sources), out.absolute()
        fields |= {name: _absolute(fields[name]) for name in ("tokenizer", "chat_template")}
    requested = {name: fields.pop(name) for name in ("text", "label", "metadata", "time", "key", "tokenizer")}
    if format is not None and requested["label"] is not None:
        raise ConfigError(f"rows of --format {format} have no label: leave --label out, or --format.")
    request = RequestedFields(**requested, without_label=no_label or format is not None)
    found = propose(sources, request) if format in (None, "text") else _explicit_fields(request)
    if found.format is not None:
        format, fields["chat_template"] = found.format, fields["chat_template"] or _new_template(found)
    if found.label is None and fields["label_kind"] != "auto":
        raise ConfigError(
            f"--label-kind {fields['label_kind']} needs a label, and there is none: name its field with --label."
        )
    config = _build_config(found, format, fields)
    if found.is_guessed:
        _confirm_proposal(found, sources, out, {**fields, "format": format})
    with _pool(on, cluster, jobs, reads=[*sources, config.tokenizer, config.chat_template], writes=out) as pool:
        manifest = build_dataset(
            sources,
            out,
            config,
            workers=jobs,
            pool=pool,
            checking=partial(show_progress, "checking", unit=" shards"),
            progress=partial(show_progress, "building", unit=" shards"),
            replacing=partial(_check_replaceable, out),
        )
    _warn_of_tokenization(config.tokenizer)
    _print(manifest, out, as_json=as_json)
    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        print_build(manifest, out)
        _print_vocabulary(config.tokenizer, out)


def _build_config(found: "Proposal", format: str | None, fields: Mapping[str, Any]) -> "BuildConfig":
    from assay.base.config import LoadedConfig, validated
    from assay.data.dataset.fields import BuildConfig

    values = {
        "format": format or "labelled",
        "tokenizer": found.tokenizer,
        "text_field": found.text,
        "label_field": found.label,
        "metadata_fields": found.metadata,
        "time_field": found.time,
        "key_field": found.key,
        "key_is_text": found.key is None,
        **fields,
    }
    return validated(BuildConfig, LoadedConfig(values, {}))


def _warn_of_tokenization(tokenizer: str) -> None:
    """Warn if transformers tokenizes texts differently with this folder, as an inference server would."""
    from assay.base.installed import installed_path
    from assay.data.dataset.tokens import load_tokenizer, new_vocabulary
    from assay.training.model_folders import tokenization_warning

    folder = installed_path(tokenizer)
    if new_vocabulary(tokenizer) is None and folder.is_dir():
        difference = tokenization_warning(folder, load_tokenizer(folder))
        if difference is not None:
            click.echo(f"warning: --tokenizer {tokenizer}: {difference}", err=True)


def _print_vocabulary(tokenizer: str, out: Path) -> None:
    """Say so if the new tokenizer has fewer tokens than requested: the texts contain no more repeated pieces."""
    from assay.data.dataset.tokens import load_tokenizer, new_vocabulary

    size = new_vocabulary(tokenizer)
    if size is not None and (found := load_tokenizer(out).get_vocab_size()) < size:
        click.echo(f"  the new tokenizer has {found:,} tokens, not {size:,}: these texts have no more that repeat")


def _explicit_fields(request: "RequestedFields") -> "Proposal":
    """Return the fields of a format with fixed names, for which there is nothing to propose."""
    from assay.data.dataset.raw.propose import TEXT, Proposal

    if request.text is not None:
        raise ConfigError("--text: rows of this --format have fixed field names (docs/data.md). Leave the option out.")
    if request.tokenizer is None:
        raise ConfigError(
            "--tokenizer is missing: name that of the model that will be trained (a tokenizer.json, or a folder or "
            "package:NAME/FOLDER with one), or new:8000 to train one on the rows."
        )
    return Proposal(TEXT, None, request.metadata, request.time, request.key, request.tokenizer, False)


def _check_replaceable(out: Path) -> None:
    """Raise `ConfigError` if `out` holds other files and --force is not set.

    Rows that a run was trained on are never replaced: without them the run cannot be audited, resumed or
    exported.
    """
    from assay.data.dataset.manifest_file import MANIFEST_FILE
    from assay.records.dataset import DatasetManifest

    path = out / MANIFEST_FILE
    existing = DatasetManifest.from_json(path.read_bytes(), source=path).fingerprint if path.is_file() else None
    trained = [run.run_id for run in current_home().runs() if run.dataset_fingerprint == existing]
    if trained:
        others = f" and {number_of(len(trained) - 1, 'other')}" if trained[1:] else ""
        raise ConfigError(
            f"{out}: run '{trained[0]}'{others} was trained on the rows in this folder; "
            "without them it cannot be audited, resumed or exported. Choose another --out."
        )
    if not is_forced():
        what = "other files, or an unfinished build of other rows" if existing is None else "a dataset of other rows"
        raise ConfigError(f"{out}: holds {what}. Choose another --out, or add --force to replace them.")


def _new_template(found: "Proposal") -> str | None:
    """Return the chat template for a tokenizer that is trained here, which has none of its own."""
    return "chatml" if found.tokenizer.startswith("new:") else None


def _confirm_proposal(found: "Proposal", sources: tuple[Path, ...], out: Path, options: Mapping[str, Any]) -> None:
    """Ask the user to confirm the proposed fields; without a terminal, raise an error with the command to run."""
    words = ["assay", "data", "build", *map(str, sources)]
    words += ["--text", found.text] if found.format is None else ["--format", found.format]
    if options["format"] is None:
        words += ["--no-label"] if found.label is None else ["--label", found.label]
    words += [word for name in found.metadata for word in ("--metadata", name)]
    for option, value in (("--group-by", found.key), ("--at", found.time), ("--tokenizer", found.tokenizer)):
        words += [option, value] if value is not None else []
    context = click.get_current_context()
    if options["chat_template"] is not None and not is_on_command_line(context, "chat_template"):
        words += ["--chat-template", options["chat_template"]]
    for parameter in context.command.params:
        if parameter.name in options and is_on_command_line(context, parameter.name):
            value = options[parameter.name]
            words += [
                word
                for item in (value if isinstance(value, tuple) else (value,))
                for word in (parameter.opts[0], str(item))
            ]
    line = shlex.join([*words, "--out", str(out), *(["--force"] if is_forced() else [])])
    if not sys.stdin.isatty():
        decided = ("text", "no_label" if is_on_command_line(context, "no_label") else "label", "tokenizer")
        missing = [f"--{name}" for name in decided if not is_on_command_line(context, name)]
        raise ConfigError(
            f"{', '.join(missing)}: not given, and there is no terminal to confirm a proposal. Run or edit this:\n\n  "
            f"{line}\n{_other_labels_text(found)}"
        )
    click.echo(f"Proposed, from the first rows:\n\n  {line}\n{_other_labels_text(found)}", err=True)
    if not click.confirm("Build the dataset with this command?", default=True, err=True):
        raise ConfigError("nothing was built. Edit the command above, e.g. its --label, and run it.")


def _other_labels_text(found: "Proposal") -> str:
    others = [f"{name} ({count:,})" for name, count in found.could_be_label.items() if name != found.label]
    if not others:
        return ""
    count = found.could_be_label[found.label or ""]
    return (
        f"\nThe label is a guess: {found.label} has {count:,} values in the first rows. "
        f"It could also be {' or '.join(others)}: choose with --label.\n"
    )


@data.command()
@click.argument("dataset", type=DATASET)
@click.argument("overrides", nargs=-1, metavar="[loader.KEY=VALUE]...")
@click.option(
    "--examples",
    default=1,
    help="Number of language-model rows to print as the model reads them, with the trained tokens marked.",
)
@json_option
def show(
    dataset: Path,
    overrides: tuple[str, ...],
    examples: int,
    as_json: bool,
) -> None:
    """Describe DATASET (the folder of a manifest), and measure how far its training order is from a uniform
    shuffle.

    Measuring reads some row groups. The order is that of 4,096 rows a window, 3 windows of shuffle radius, 8
    lanes and 64 rows a batch, or as 'loader.KEY=VALUE' says, e.g. loader.lanes=16; 'assay train RECIPE --check'
    measures the order of a recipe. In rows for a
    language model, trained tokens are in color, or between ⟦ and ⟧.
    """
    from assay.base.config import LoadedConfig, validated
    from assay.base.errors import AssayError
    from assay.data.dataset.dataset import Dataset
    from assay.data.dataset.split import whole_view
    from assay.data.loader.config import LoaderConfig
    from assay.data.loader.mixing import measure_mixing
    from assay.reporting.terminal.data import order_lines, print_examples
    from assay.reporting.views.dataset_order import json_with_order
    from assay.store.retry_policy import RetryPolicy

    config = validated(LoaderConfig, LoadedConfig(SHOWN_ORDER | _loader_values(overrides), {}))
    loaded = Dataset.open(dataset, RetryPolicy(STORE_TIMEOUT_S))
    if not as_json:
        _print(loaded.manifest, dataset, as_json=False)
        print_examples(loaded, examples)
    try:
        found, problem = measure_mixing(whole_view(loaded), config), ""
    except AssayError as error:
        found, problem = None, str(error)
    if as_json:
        click.echo(json_with_order(loaded.manifest, found))
        return
    if found is None:
        click.echo(f"\norder of the rows: not measured. {problem}")
        return
    click.echo("\n" + "\n".join(order_lines(found, config, mean_tokens=loaded.manifest.lengths.mean)))


def _loader_values(overrides: tuple[str, ...]) -> dict[str, Any]:
    from assay.base.config import parse_override

    values = dict(map(parse_override, overrides))
    if other := [key for key in values if not key.startswith("loader.")]:
        raise ConfigError(f"{other[0]}: only keys of the loader change the order, e.g. loader.lanes=16.")
    return {key.removeprefix("loader."): value for key, value in values.items()}


_split_options = combined(
    click.option(
        "--by",
        "column",
        help="Column to split by; input_ids keeps copies of a text together.  [default: shard_id; created_at "
        "with --since; split with --equals]",
    ),
    click.option("--fraction", default=0.1, help="Share of the column's values to hold out, chosen by hash."),
    seed_option("the hash"),
    click.option(
        "--since",
        "moment",
        type=click.DateTime(),
        help="Hold out the rows from this time (UTC) on, instead of by hash.",
    ),
    click.option(
        "--equals",
        "values",
        multiple=True,
        help="Hold out the rows whose column has this value, to use an existing split. May be repeated.",
    ),
    click.option(
        "--drop-leaks", is_flag=True, help="Drop validation rows whose tokens also occur in training; reads all rows."
    ),
)


def _split_of(
    column: str | None,
    fraction: float,
    seed: int,
    moment: object,
    values: tuple[str, ...],
    *,
    drop_leaks: bool,
) -> "SplitConfig":
    from assay.base.config import LoadedConfig, validated
    from assay.data.dataset.split import ColumnSplit, HashSplit, TimeSplit

    if values and moment is not None:
        raise ConfigError("--since and --equals exclude each other: give one of them.")
    by_value = {"type": "column", "column": column or "split", "validation": values}
    if values:
        found = validated(ColumnSplit, LoadedConfig(by_value, {}))
        return found.model_copy(update={"drop_leaks": drop_leaks})
    by_hash = {"column": column or "shard_id", "validation_fraction": fraction, "seed": seed}
    by_time = {"type": "time", "column": column or "created_at", "validation_from": moment}
    config = (
        validated(HashSplit, LoadedConfig(by_hash, {}))
        if moment is None
        else validated(TimeSplit, LoadedConfig(by_time, {}))
    )
    return config.model_copy(update={"drop_leaks": drop_leaks})


@data.command()
@click.argument("dataset", type=DATASET)
@_split_options
@click.option("--check-leaks", is_flag=True, help="Count rows with the same tokens on both sides; reads all rows.")
@json_option
def split(dataset: Path, check_leaks: bool, as_json: bool, **by: Any) -> None:
    """Show how DATASET would be split: by the hash of a key, by time or by the values of a column.

    A split never separates rows at random, so copies and related rows stay on one side. Prints the lines to put
    under 'data:' in a recipe.
    """
    from assay.data.dataset.dataset import Dataset
    from assay.data.dataset.held_out.leaks import find_leaks
    from assay.data.dataset.split import split_view
    from assay.reporting.terminal.data import print_split
    from assay.reporting.views.dataset_split import dataset_split_view

    config = _split_of(**by)
    loaded = Dataset.open(dataset)
    train, validation = split_view(loaded, config, "train"), split_view(loaded, config, "validation")
    leak = find_leaks(train, validation) if check_leaks else None
    found = dataset_split_view(train, validation, config, leak)
    if as_json:
        click.echo(found.to_json())
    else:
        print_split(dataset, found, loaded.manifest.build)


@data.command("hold-out", sections={"Clusters": ("on", "cluster")})
@click.argument("dataset", type=DATASET)
@_split_options
@_pool_options
@json_option
def hold_out(dataset: Path, on: str, cluster: str | None, as_json: bool, **by: Any) -> None:
    """Write the held-out rows of DATASET as a dataset of their own, next to its manifest.

    Evaluations with that split read the copy instead: the same rows in the same batches. This pays if held-out
    rows are spread over many row groups, because each evaluation decodes all of them.
    """
    from assay.data.dataset.dataset import Dataset, source_url
    from assay.data.dataset.held_out.copy import copy_folder
    from assay.data.dataset.held_out.write import hold_out as write_held_out
    from assay.reporting.terminal.terminal import show_progress

    loaded = Dataset.open(dataset if on == "here" else dataset.absolute())
    config = _split_of(**by)
    reads = (loaded.folder, source_url(loaded.folder, loaded.manifest))
    with _pool(on, cluster, 1, reads=reads, writes=loaded.folder) as pool:
        manifest = write_held_out(loaded, config, partial(show_progress, "holding out", unit=" shards"), pool)
    assert manifest.held_out_of is not None
    _print(manifest, copy_folder(dataset, manifest.held_out_of.split_sha256), as_json=as_json)


@data.command()
@click.argument("dataset", type=DATASET)
@click.option(
    "--reference",
    required=True,
    metavar="MODEL_OR_RUN[@STEP]",
    help="Reference model: a checkpoint folder, or the commit of a run (by default the last one).",
)
@click.option("--out", type=FOLDER, required=True, help="Folder for the new dataset.")
@force_option
@click.option("--name", help="Display name of the dataset; by default the folder's name.")
@click.option(
    "--tokens-at-once",
    type=click.IntRange(min=1),
    default=8192,
    help="Tokens of one forward pass, including padding; bounded by memory.",
)
@json_option
def score(dataset: Path, reference: str, out: Path, name: str | None, tokens_at_once: int, as_json: bool) -> None:
    """Copy the pairs of DATASET and add the reference model's log-probabilities, so DPO can train without a
    reference.

    The new columns hold the log-probabilities of the chosen and the rejected completion given the prompt. The
    new manifest names DATASET and the reference's weights by their digests; 'method.reference={type: columns}'
    in a recipe reads them and rejects those of other weights. The same command continues after an interruption.
    """
    home = current_home()
    if not reference.startswith("package:") and not Path(reference).exists():
        run_and_step(home, reference)  # reports an unknown run before torch is imported
    from assay.data.dataset.dataset import Dataset
    from assay.reporting.terminal.terminal import show_progress
    from assay.workflows.export.score_pairs import folder_reference, is_folder, run_reference, score_pairs

    loaded = Dataset.open(dataset)
    model = (
        folder_reference(reference, loaded)
        if is_folder(reference)
        else run_reference(home, *run_and_step(home, reference), loaded)
    )
    manifest = score_pairs(
        loaded,
        model,
        out,
        name=name,
        tokens_at_once=tokens_at_once,
        progress=partial(show_progress, "scoring", unit=" row groups"),
        replacing=partial(_check_replaceable, out),
    )
    _print(manifest, out, as_json=as_json)


@data.command()
@click.argument("before", type=DATASET)
@click.argument("after", type=DATASET)
@click.option("--rows", "by_row", is_flag=True, help="Also compare row by row; reads both datasets.")
@json_option
def diff(before: Path, after: Path, by_row: bool, as_json: bool) -> None:
    """Show what changed from dataset BEFORE to dataset AFTER: rows, shards, columns, lengths, labels and
    values.

    The two manifests are compared; shards are read only with --rows.
    """
    from assay.data.dataset.dataset import Dataset
    from assay.data.dataset.diff import diff_datasets
    from assay.reporting.terminal.data import print_diff

    found = diff_datasets(Dataset.open(before), Dataset.open(after), by_row=by_row)
    print_view(found, print_diff, as_json=as_json)


def _print(manifest: "DatasetManifest", folder: Path, *, as_json: bool) -> None:
    from assay.reporting.terminal.data import print_manifest

    if as_json:
        click.echo(manifest.to_json())
    else:
        print_manifest(manifest, folder)
