"""`assay data`: adopt, build, describe, split, score and compare datasets."""

import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.cli.parameters import (
    DATASET,
    FOLDER,
    SOURCE,
    SOURCE_PATH,
    CommandGroup,
    current_home,
    force_option,
    is_forced,
    is_on_command_line,
    run_and_step,
)

if TYPE_CHECKING:
    from assay.data.dataset.raw.propose import Proposal, RequestedFields
    from assay.data.dataset.split import SplitConfig
    from assay.records.dataset import DatasetManifest


STORE_TIMEOUT_S = 15.0
"""How long a store may be away of which no more than the order is to be measured."""


@click.group(cls=CommandGroup)
def data() -> None:
    """Adopt Parquet as it is, or build a dataset from raw text; look at it; see how it splits; compare two."""


@data.command()
@click.argument("source", type=SOURCE)
@click.option("--out", type=FOLDER, required=True, help="Folder of the manifest; the shards stay where they are.")
@force_option
@click.option("--name", help="For people; by default the source's last part.")
@click.option("--no-label", is_flag=True, help="The rows need no 'label' column.")
@click.option("--workers", default=2, show_default=True, help="Shards read at once.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def index(source: str, out: Path, name: str | None, no_label: bool, workers: int, as_json: bool) -> None:
    """Adopt all *.parquet under SOURCE, a folder or s3://bucket/prefix, without converting it.

    Reads every shard once: digests of files and column chunks, row groups, token lengths, label balance,
    missing rates. Any file that training could not read is an error now. Files and folders whose name begins
    with _ or . are left out, as Spark does.
    """
    from assay.data.dataset.index import index_dataset
    from assay.reporting.terminal.terminal import show_progress

    manifest = index_dataset(
        source,
        out,
        name=name,
        needs_label=not no_label,
        workers=workers,
        progress=partial(show_progress, "indexing", unit=" shards"),
        replacing=partial(_check_replaceable, out),
    )
    _print(manifest, out, as_json=as_json)


@data.command()
@click.argument("sources", nargs=-1, required=True, type=SOURCE_PATH)
@click.option("--out", type=FOLDER, required=True, help="Folder of the dataset.")
@force_option
@click.option(
    "--format",
    type=click.Choice(["text", "chat", "pairs", "prompts"]),
    help="Rows for a language model: texts; messages, or prompts with completions; chosen and rejected "
    "answers; prompts with what graders read.  [default: labelled texts]",
)
@click.option(
    "--chat-template",
    help="A .jinja file that renders messages, or chatml.  [default: the one beside the tokenizer]",
)
@click.option("--chat-date", help="The day that a template which asks for it takes for today: 2026-11-22.")
@click.option(
    "--end-token",
    help="Put behind a text or a completion; '' for nothing.  [default: the tokenizer's eos_token]",
)
@click.option(
    "--control-tokens",
    type=click.Choice(["refuse", "text", "keep"]),
    default="refuse",
    show_default=True,
    help="What tokens like <|im_end|> in the texts are: an error, text, or tokens, as rows have them that "
    "were rendered before.",
)
@click.option(
    "--tokenizer",
    help="A tokenizer.json, a folder or package:NAME/FOLDER with one, or new:8000 to train one on the texts.",
)
@click.option("--text", help="Field with the text.  [default: text]")
@click.option("--label", help="Field with what is to be learned.  [default: label]")
@click.option(
    "--label-kind",
    type=click.Choice(["auto", "binary", "classes", "number"]),
    default="auto",
    show_default=True,
    help="What the labels are: 0 and 1, names, or a quantity; auto tells from all of them.",
)
@click.option("--no-label", is_flag=True, help="The rows have no label.")
@click.option(
    "--metadata",
    multiple=True,
    help="A field to keep as a column, which 'recipe new' lets the model read beside the text; may be given "
    "more than once.",
)
@click.option(
    "--group-by",
    "--key",
    "key",
    help="Field whose rows stay together when some are held out, as 'shard_id'.  [default: the text itself]",
)
@click.option("--time", help="Field with an ISO 8601 time, kept as 'created_at'.")
@click.option(
    "--drop",
    multiple=True,
    type=click.Choice(["doubled", "conflicting", "unusable"]),
    help="Leave out rows whose text an earlier row has, all rows of a text with several labels, or "
    "'unusable' rows, which else stop the build: lines that are no JSON object or no UTF-8, rows of CSV with "
    "too few or too many values, and rows from which nothing can be learned as they are. They are counted.",
)
@click.option("--max-tokens", default=2048, show_default=True, help="Longer rows are cut, or left out.")
@click.option("--rows-per-shard", default=100_000, show_default=True)
@click.option("--rows-per-group", default=1_000, show_default=True, help="The unit that training reads.")
@click.option("--workers", default=2, show_default=True, help="Processes; small files need no other.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def build(
    sources: tuple[Path, ...],
    out: Path,
    format: str | None,
    workers: int,
    as_json: bool,
    no_label: bool,
    **fields: Any,
) -> None:
    """Tokenise SOURCES into Parquet shards, and index them.

    A source is a file of Parquet, Arrow, CSV, TSV, JSON lines (an object a row) or .txt (a row a line); another
    file, or a pattern in quotes ('notes/**/*.md'), a row a file; a folder of one of these, or as the 'datasets'
    library saved it. A file that is a row has the fields 'text', 'path' and 'folder'.

    With --format rows are those of TRL and of OpenAI's fine-tuning: text; messages, or prompt and completion;
    prompt, chosen and rejected, or input, preferred_output and non_preferred_output; prompt and what else a
    grader reads.

    Fields that are not named are proposed, and asked for on a terminal. All rows are checked first. If a build
    is interrupted, the same command goes on where it stopped.
    """
    from assay.base.config import LoadedConfig, validated
    from assay.data.dataset.build import build_dataset
    from assay.data.dataset.fields import BuildConfig
    from assay.data.dataset.raw.propose import RequestedFields, propose
    from assay.reporting.terminal.data import print_build
    from assay.reporting.terminal.terminal import show_progress

    asked = {name: fields.pop(name) for name in ("text", "label", "metadata", "time", "key", "tokenizer")}
    if format is not None and asked["label"] is not None:
        raise ConfigError(f"rows of --format {format} have no label: leave --label out, or --format.")
    given = RequestedFields(**asked, without_label=no_label or format is not None)
    found = propose(sources, given) if format in (None, "text") else _explicit_fields(given)
    if found.format is not None:
        format, fields["chat_template"] = found.format, fields["chat_template"] or _new_template(found)
    if found.label is None and fields["label_kind"] != "auto":
        raise ConfigError(
            f"--label-kind {fields['label_kind']} is of a label, and there is none: name it with --label."
        )
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
    config = validated(BuildConfig, LoadedConfig(values, {}))
    if found.is_guessed:
        _confirm_proposal(found, sources, out, {**fields, "format": format})
    manifest = build_dataset(
        sources,
        out,
        config,
        workers=workers,
        checking=partial(show_progress, "checking", unit=" shards"),
        progress=partial(show_progress, "building", unit=" shards"),
        replacing=partial(_check_replaceable, out),
    )
    _warn_of_tokenization(config.tokenizer)
    _print(manifest, out, as_json=as_json)
    if not as_json:
        print_build(manifest, out)
        _print_vocabulary(config.tokenizer, out)


def _warn_of_tokenization(asked: str) -> None:
    """A model's folder may be read otherwise by transformers, as whoever serves the model does."""
    from assay.base.installed import installed_path
    from assay.data.dataset.tokens import load_tokenizer, new_vocabulary
    from assay.training.model_folders import tokenization_warning

    folder = installed_path(asked)
    if new_vocabulary(asked) is None and folder.is_dir():
        difference = tokenization_warning(folder, load_tokenizer(folder))
        if difference is not None:
            click.echo(f"warning: --tokenizer {asked}: {difference}", err=True)


def _print_vocabulary(asked: str, out: Path) -> None:
    """Few texts have no more pieces that come twice."""
    from assay.data.dataset.tokens import load_tokenizer, new_vocabulary

    size = new_vocabulary(asked)
    if size is not None and (found := load_tokenizer(out).get_vocab_size()) < size:
        click.echo(f"  the new tokenizer has {found:,} tokens, not {size:,}: these texts have no more that repeat")


def _explicit_fields(given: "RequestedFields") -> "Proposal":
    """Where the names of fields are the format's own, there is nothing to propose."""
    from assay.data.dataset.raw.propose import TEXT, Proposal

    if given.text is not None:
        raise ConfigError(
            "--text names a field of texts; rows of this --format have names of their own (docs/data.md). Leave it out."
        )
    if given.tokenizer is None:
        raise ConfigError(
            "--tokenizer is missing: the one of the model that will be trained (a tokenizer.json, or a folder "
            "or package:NAME/FOLDER with one), or new:8000 to train one on the rows."
        )
    return Proposal(TEXT, None, given.metadata, given.time, given.key, given.tokenizer, False)


def _check_replaceable(out: Path) -> None:
    """Raise `ConfigError` where other rows, or files of somebody else, are not to be written over; those that
    runs learned never are: nobody could audit, resume or export these any more."""
    from assay.data.dataset.manifest_file import MANIFEST_FILE
    from assay.records.dataset import DatasetManifest

    path = out / MANIFEST_FILE
    existing = DatasetManifest.from_json(path.read_bytes(), source=path).fingerprint if path.is_file() else None
    trained = [run.run_id for run in current_home().runs() if run.dataset_fingerprint == existing]
    if trained:
        others = f" and {number_of(len(trained) - 1, 'other')}" if trained[1:] else ""
        raise ConfigError(
            f"{out}: run '{trained[0]}'{others} learned the rows there, which these would replace; "
            "without those it can be neither audited, resumed nor exported. Choose another --out."
        )
    if not is_forced():
        what = "other files, or an unfinished build of other rows" if existing is None else "a dataset of other rows"
        raise ConfigError(f"{out}: holds {what}. Name another --out, or replace them: --force.")


def _new_template(found: "Proposal") -> str | None:
    """A tokenizer that is trained here comes with none."""
    return "chatml" if found.tokenizer.startswith("new:") else None


def _confirm_proposal(found: "Proposal", sources: tuple[Path, ...], out: Path, options: Mapping[str, Any]) -> None:
    """Ask whether these are the fields that are meant; without a terminal, say what to paste."""
    words = ["assay", "data", "build", *map(str, sources)]
    words += ["--text", found.text] if found.format is None else ["--format", found.format]
    if options["format"] is None:
        words += ["--no-label"] if found.label is None else ["--label", found.label]
    words += [word for name in found.metadata for word in ("--metadata", name)]
    for option, value in (("--group-by", found.key), ("--time", found.time), ("--tokenizer", found.tokenizer)):
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
        raise ConfigError(
            f"which fields are meant was not said. This is a proposal to run as it is, or changed:\n\n  "
            f"{line}\n{_other_labels_text(found)}"
        )
    click.echo(f"Proposed, from the first rows:\n\n  {line}\n{_other_labels_text(found)}", err=True)
    if not click.confirm("Build the dataset so?", default=True, err=True):
        raise ConfigError("nothing was built. Run the line above with what you want changed, --label, say.")


def _other_labels_text(found: "Proposal") -> str:
    """What else may be meant to be learned: which of several it is, no rule can tell."""
    others = [f"{name} ({count:,})" for name, count in found.could_be_label.items() if name != found.label]
    if not others:
        return ""
    count = found.could_be_label[found.label or ""]
    return (
        f"\nThe label is a guess: {found.label} has {count:,} values in the first rows. "
        f"It may as well be {' or '.join(others)}: say --label.\n"
    )


@data.command()
@click.argument("dataset", type=DATASET)
@click.option("--window-rows", default=4096, show_default=True, help="As 'loader.window_rows' of a recipe.")
@click.option("--shuffle-radius-windows", default=3, show_default=True, help="As 'loader.shuffle_radius_windows'.")
@click.option("--lanes", default=8, show_default=True, help="As 'loader.lanes'.")
@click.option("--batch", default=64, show_default=True, help="As 'loader.global_batch_size'.")
@click.option(
    "--examples",
    default=1,
    show_default=True,
    help="Rows for a language model to print as the model reads them, what is trained marked.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON; measure nothing.")
def show(
    dataset: Path,
    window_rows: int,
    shuffle_radius_windows: int,
    lanes: int,
    batch: int,
    examples: int,
    as_json: bool,
) -> None:
    """What DATASET (a manifest's folder) holds, and how far from a uniform shuffle training would read it.

    The latter reads some row groups; 'assay train RECIPE --check' says it of a recipe's own order. Of rows for
    a language model, what is trained is in colour, or between ⟦ and ⟧.
    """
    from assay.base.config import LoadedConfig, validated
    from assay.base.errors import AssayError
    from assay.data.dataset.dataset import Dataset
    from assay.data.dataset.split import whole_view
    from assay.data.loader.config import LoaderConfig
    from assay.data.loader.mixing import measure_mixing
    from assay.reporting.terminal.data import order_lines, print_examples
    from assay.reporting.views.dataset_order import json_with_order
    from assay.store.patience import Patience

    given = {
        "window_rows": window_rows,
        "shuffle_radius_windows": shuffle_radius_windows,
        "lanes": lanes,
        "global_batch_size": batch,
    }
    config = validated(LoaderConfig, LoadedConfig(given, {}))
    loaded = Dataset.open(dataset, Patience(STORE_TIMEOUT_S))
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


_SPLIT_OPTIONS = (
    click.option(
        "--by",
        "column",
        help="Column that decides; input_ids keeps copies of a text together.  [default: shard_id; created_at "
        "with --from, split with --value]",
    ),
    click.option(
        "--fraction", default=0.1, show_default=True, help="Share of the column's values to hold out, by hash."
    ),
    click.option("--seed", default=0, show_default=True),
    click.option(
        "--from",
        "moment",
        type=click.DateTime(),
        help="Hold out the rows from this moment on (UTC), instead of by hash.",
    ),
    click.option(
        "--value",
        "values",
        multiple=True,
        help="Hold out the rows whose column has this value, as whoever made the data split it; repeatable.",
    ),
    click.option(
        "--drop-leaks",
        is_flag=True,
        help="Leave out of validation the rows whose very tokens training has, too; reads all rows.",
    ),
)
"""How a dataset is split."""


def _split_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_SPLIT_OPTIONS):
        command = option(command)
    return command


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
        raise ConfigError("--from and --value are two ways to hold out. Give one.")
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
@click.option("--check-leaks", is_flag=True, help="Look for the same tokens on both sides; reads all rows.")
@click.option("--json", "as_json", is_flag=True, help="Print the sides as JSON.")
def split(
    dataset: Path,
    column: str | None,
    fraction: float,
    seed: int,
    moment: object,
    values: tuple[str, ...],
    check_leaks: bool,
    drop_leaks: bool,
    as_json: bool,
) -> None:
    """How DATASET would split: by a key's hash, by time or as a column says, never by row at random, so that
    nothing leaks.

    Prints the lines to put under 'data:' in a recipe.
    """
    from assay.data.dataset.dataset import Dataset
    from assay.data.dataset.held_out.leaks import find_leaks
    from assay.data.dataset.split import split_view
    from assay.reporting.terminal.data import print_split
    from assay.reporting.views.dataset_split import dataset_split_view

    config = _split_of(column, fraction, seed, moment, values, drop_leaks=drop_leaks)
    loaded = Dataset.open(dataset)
    train, validation = split_view(loaded, config, "train"), split_view(loaded, config, "validation")
    leak = find_leaks(train, validation) if check_leaks else None
    found = dataset_split_view(train, validation, config, leak)
    if as_json:
        click.echo(found.to_json())
    else:
        print_split(dataset, found, loaded.manifest.build)


@data.command("hold-out")
@click.argument("dataset", type=DATASET)
@_split_options
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def hold_out(
    dataset: Path,
    column: str | None,
    fraction: float,
    seed: int,
    moment: object,
    values: tuple[str, ...],
    drop_leaks: bool,
    as_json: bool,
) -> None:
    """Write the held-out rows of DATASET by a split once, as a dataset beside its manifest that names it.

    Evaluations by that split read them in its place: the same rows in the same batches. Worth it where
    held-out rows lie in many row groups, as those of a moment do: each evaluation decodes all of these.
    """
    from assay.data.dataset.dataset import Dataset
    from assay.data.dataset.held_out.copy import copy_folder
    from assay.data.dataset.held_out.write import hold_out as write_held_out
    from assay.reporting.terminal.terminal import show_progress

    loaded = Dataset.open(dataset)
    config = _split_of(column, fraction, seed, moment, values, drop_leaks=drop_leaks)
    manifest = write_held_out(loaded, config, partial(show_progress, "holding out", unit=" row groups"))
    assert manifest.held_out_of is not None
    _print(manifest, copy_folder(dataset, manifest.held_out_of.split_sha256), as_json=as_json)


@data.command()
@click.argument("dataset", type=DATASET)
@click.option(
    "--reference",
    required=True,
    metavar="MODEL_OR_RUN[@STEP]",
    help="Who is asked: a checkpoint folder, or the last commit of a run, or that of a step.",
)
@click.option("--out", type=FOLDER, required=True, help="Folder of the new dataset.")
@force_option
@click.option("--name", help="For people; by default the folder's name.")
@click.option(
    "--tokens-at-once",
    type=click.IntRange(min=1),
    default=8192,
    show_default=True,
    help="Of one forward pass, padding counted: bounded by memory.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def score(dataset: Path, reference: str, out: Path, name: str | None, tokens_at_once: int, as_json: bool) -> None:
    """Copy the pairs of DATASET, with what a reference says of each: a dataset that DPO learns from alone.

    The columns are the log-probabilities of what was chosen and of what was rejected, given the prompt. The
    new manifest names DATASET and the reference's weights by their digests; a recipe's
    'method.reference={type: columns}' reads them, and refuses those of other weights. The same command goes on
    after an interruption.
    """
    home = current_home()
    if not reference.startswith("package:") and not Path(reference).exists():
        run_and_step(home, reference)  # says what runs there are, before torch is imported
    from assay.data.dataset.dataset import Dataset
    from assay.reporting.terminal.terminal import show_progress
    from assay.workflows.export.score_pairs import folder_reference, is_folder, run_reference, score_pairs

    loaded = Dataset.open(dataset)
    asked = (
        folder_reference(reference, loaded)
        if is_folder(reference)
        else run_reference(home, *run_and_step(home, reference), loaded)
    )
    manifest = score_pairs(
        loaded,
        asked,
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
@click.option("--rows", "by_row", is_flag=True, help="Compare row by row, too; reads both datasets.")
@click.option("--json", "as_json", is_flag=True, help="Print the difference as JSON.")
def diff(before: Path, after: Path, by_row: bool, as_json: bool) -> None:
    """What changed from dataset BEFORE to dataset AFTER: rows, shards, columns, lengths, labels, values.

    Told from the two manifests; no shard is read, unless rows are to be compared.
    """
    from assay.data.dataset.dataset import Dataset
    from assay.data.dataset.diff import diff_datasets
    from assay.reporting.terminal.data import print_diff

    found = diff_datasets(Dataset.open(before), Dataset.open(after), by_row=by_row)
    if as_json:
        click.echo(found.to_json())
    else:
        print_diff(found)


def _print(manifest: "DatasetManifest", folder: Path, *, as_json: bool) -> None:
    from assay.reporting.terminal.data import print_manifest

    if as_json:
        click.echo(manifest.to_json())
    else:
        print_manifest(manifest, folder)
