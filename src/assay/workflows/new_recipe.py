"""Writes a first recipe for a dataset by rules of thumb, each explained in a comment, and checks it.

The method follows from the labels, or from the format of rows without labels; the token budget from the lengths
of rows; batch size, epochs and commits from their number; the model size from both and from whether there is a
GPU. The recipe trains well enough to start with; it is not optimal.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import yaml

from assay.base.config import LoadedConfig
from assay.base.errors import ConfigError
from assay.base.installed import installed_path
from assay.base.units import count_text, number_of, tenths_text
from assay.data.dataset.checkpoint_tokens import num_token_ids
from assay.data.dataset.columns import (
    KEY,
    LABEL,
    MARGIN,
    MASK,
    REFERENCE_LOGPROBS,
    TIME,
    TOKENS,
    sequences_of,
)
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.held_out.leaks import quick_leaks
from assay.data.dataset.label_values import FEW
from assay.data.dataset.split import DatasetView, HashSplit, split_view
from assay.data.dataset.tokens import TOKENIZER_FILE, load_tokenizer, tokenizer_of
from assay.data.loader.config import LoaderConfig
from assay.data.loader.mixing import measure_mixing
from assay.elastic.processor import gpus_here
from assay.models.causal_config import PretrainedCausalConfig
from assay.records.dataset import ColumnProfile, DatasetManifest
from assay.statistics.warnings import Warned, warnings_of_leaks
from assay.training.model_folders import check_models, check_tokenization
from assay.workflows.data_warnings import data_warnings
from assay.workflows.run import check_recipe

LANES = 8
FEW_ROWS, MANY_ROWS = 5_000, 200_000
TARGET_STEPS = 400
"""Steps that a small model needs to learn anything."""
MOST_EPOCHS = 20
_WIDTH = 66
"""Column where comments start."""
_SEEDS = 50


class _Sizes(NamedTuple):
    batch: int
    epochs: int
    steps: int
    commit_every: int


class _Columns(NamedTuple):
    categorical: list[str]
    numeric: list[str]
    left_out: list[str]


LanguageMethod = Literal["sft", "reward", "dpo", "grpo"]
_METHODS: Mapping[str, tuple[LanguageMethod, ...]] = {
    "text": ("sft",),
    "chat": ("sft",),
    "pairs": ("reward", "dpo"),
    "prompts": ("grpo",),
}
"""Methods for each format, the default first."""
_NEW_RATE = 1e-3
_PRETRAINED_RATES = {"sft": 2e-5, "reward": 1e-5, "dpo": 1e-6, "grpo": 1e-6}
_USUAL_WEIGHTS = 7e9
"""Model size (parameters) that these learning rates are usual for."""
_GROUP_SIZE = 8
_COMPLETION_TOKENS = 256
_MOST_TOKENS = 16_384
_MOST_WINDOW_BYTES = 1 << 30
"""Limit of the rows that all ranks hold for mixing."""
_REFERENCE_FIELDS = (
    "answer", "reference", "target", "solution", "expected", "label", "output", "completion", "ground_truth",
)  # fmt: skip
"""Names of the item field with the reference answer, the most likely first."""


class NewRecipe(NamedTuple):
    """A recipe and warnings about its data."""

    text: str
    """YAML with a comment on each line."""
    warnings: list[Warned]


def new_recipe(
    folder: Path,
    *,
    name: str | None,
    model: str | None,
    epochs: int | None,
    method: LanguageMethod | None,
    grader: Mapping[str, Any] | None = None,
) -> NewRecipe:
    """Write a first recipe for a dataset. Raises `ConfigError` if it cannot be trained on.

    `model` is the folder of a pretrained model; `method` applies to language-model rows only; `grader` is that of
    rewards, by default a comparison with the field that looks like a reference answer.
    """
    dataset = Dataset.open(folder)
    manifest = dataset.manifest
    method_type = _language_method(manifest, method, folder)
    if method_type == "dpo" and model is None:
        model = manifest.scored.reference if manifest.scored else None
        if model is None or not (installed_path(model) / "config.json").is_file():
            raise ConfigError(
                f"{folder}: DPO needs a trained language model: --model FOLDER (written by 'assay "
                "runs export RUN', or any that transformers reads)."
            )
    if method_type == "grpo" and model is None:
        raise ConfigError(
            f"{folder}: rewards teach a language model that answers some prompts already: --model FOLDER (that "
            "of 'assay runs export RUN', or any that transformers reads, with its tokenizer.json)."
        )
    split, train = _split(dataset)
    sizes = _sizes(int(train.num_rows.sum()), epochs, pretrained=model is not None)
    title = re.sub(r"[^\w.-]+", "-", name or manifest.name).strip("-.") or "first"
    lines = [
        f"# {manifest.num_rows:,} rows, {count_text(manifest.num_tokens)} tokens; made for {_machine()}.",
        "# Check it: assay train THIS --check. Change a value here, or after it: trainer.epochs=3.",
        *_aligned(_general(title, folder, split, train, manifest.build.group if manifest.build else "")),
        *_aligned(_loader(train, sizes, model)),
        *_aligned(_language(dataset, method_type, model, grader) if method_type else _method(dataset, train, model)),
        *_aligned(_trainer(sizes, _rate(method_type, model))),
    ]
    text = "\n".join(lines) + "\n"
    recipe, _ = check_recipe(LoadedConfig(yaml.safe_load(text), {}))
    check_models(recipe)
    if model is not None:
        check_tokenization(dataset, model)
    return NewRecipe(text, data_warnings(recipe, dataset))


def _aligned(lines: Iterator[tuple[str, str]]) -> Iterator[str]:
    for line, meaning in lines:
        yield f"{line:<{_WIDTH}}  # {meaning}" if meaning else line


def _general(title: str, folder: Path, split: HashSplit, train: DatasetView, group: str) -> Iterator[tuple[str, str]]:
    validation = split_view(train.dataset, split, "validation")
    held_out = int(validation.num_rows.sum()) / train.dataset.manifest.num_rows
    yield f"name: {title}", "prefix of the run ids"
    yield "seed: 0", "of initial weights and dropout; vary it to repeat the experiment"
    yield "data:", ""
    yield f"  dataset: {_flow(str(folder))}", "relative to the working directory"
    together = f"rows of one '{group}'" if group and split.column == KEY else "equal values"
    options = f"column: {_flow(split.column)}, validation_fraction: {split.validation_fraction}, seed: {split.seed}"
    dropped = ""
    if split.drop_leaks:
        options += ", drop_leaks: true"
        dropped = ", copies of training rows left out"
    yield (
        f"  split: {{type: hash, {options}}}",
        f"{held_out:.0%} of the rows are held out{dropped}; {together} stay together",
    )


def _loader(train: DatasetView, sizes: _Sizes, model: str | None) -> Iterator[tuple[str, str]]:
    manifest = train.dataset.manifest
    rows_per_lane = sizes.batch // LANES
    sequences = len(sequences_of(manifest.columns)) if manifest.format == "pairs" else 1
    needed = sequences * max(int(rows_per_lane * manifest.lengths.p95), manifest.lengths.max)
    unit = "pair" if sequences > 1 else "row"
    what = f"{rows_per_lane} {unit}s of a lane at the 95% length"
    if manifest.lengths.max > rows_per_lane * manifest.lengths.p95:
        what = f"the longest {unit} has a sequence of {manifest.lengths.max:,}; the 95% length is shorter"
    if manifest.format == "prompts":
        longest, completions = (
            manifest.lengths.max + _completion_tokens(manifest, model),
            rows_per_lane * _GROUP_SIZE,
        )
        needed = max(longest, min(_MOST_TOKENS, completions * longest))
        what = f"at most {completions} answers of a lane, each with its prompt; prompts at the 95% length"
    budget = -(-needed // 256) * 256
    yield "loader:", ""
    yield f"  lanes: {LANES}", f"the same weights on any number of workers up to {LANES}"
    yield (
        f"  global_batch_size: {sizes.batch}",
        "rows of one step; larger batches are less noisy, and give fewer steps",
    )
    yield (
        f"  window_rows: {_window_rows(train, sizes)}",
        "rows of a lane that are shuffled together; 'assay data show' measures the result",
    )
    yield (
        "  layout: {type: bucketed, jitter: 0.1}",
        "rows of similar length share a micro-batch, so there is little padding",
    )
    yield (
        f"  max_micro_batch_tokens: {budget}",
        f"bounds the memory of a forward pass: {what} ({manifest.lengths.p95:.0f})",
    )


def _window_rows(train: DatasetView, sizes: _Sizes) -> int:
    """Return the usual window; a larger one if that mixes these rows badly and the memory allows."""
    num_rows = int(train.num_rows.sum())
    usual = min(4096, max(64, 1 << (num_rows // LANES).bit_length()))
    config = LoaderConfig(lanes=LANES, global_batch_size=sizes.batch, window_rows=usual)
    fix = measure_mixing(train, config).fix
    tokens = LANES * train.dataset.manifest.lengths.mean
    if fix is None or config.buffer_bytes_per_token * tokens * fix.window_rows > _MOST_WINDOW_BYTES:
        return usual
    return fix.window_rows


def _method(dataset: Dataset, train: DatasetView, encoder: str | None) -> Iterator[tuple[str, str]]:
    manifest, columns = dataset.manifest, _columns(dataset.manifest)
    yield "method:", ""
    yield "  type: classify", "an encoder for tokens and metadata, and a head that predicts the label"
    yield from _label(train)
    if encoder is not None:
        yield "  encoder:", ""
        yield (
            f"    type: pretrained\n    path: {_flow(encoder)}",
            "its tokenizer must be the one of the dataset",
        )
    else:
        width, layers = _model_size(manifest)
        yield "  encoder:", ""
        yield "    type: new", "random weights; 'assay train new --model FOLDER' uses pretrained ones"
        yield f"    vocab_size: {_vocabulary(dataset)}", "of the dataset's tokenizer"
        yield f"    hidden_size: {width}", f"small, for {count_text(manifest.num_tokens)} tokens"
        yield f"    num_layers: {layers}", "more learn more, and more slowly"
        yield f"    num_heads: {max(2, width // 32)}", "of width 32"
        yield f"    intermediate_size: {4 * width}", "four times the width, as usual"
        yield f"    max_tokens: {manifest.lengths.max}", "the longest row"
    if columns.categorical:
        yield f"  categorical_columns: {_flow(columns.categorical)}", "metadata inputs, as categories"
    if columns.numeric:
        yield (
            f"  numeric_columns: {_flow(columns.numeric)}",
            "metadata inputs, as numbers by their order of magnitude",
        )
    if columns.left_out:
        yield (
            f"  # left out: {', '.join(columns.left_out)}",
            "one value, none, or nearly as many as rows; or a time",
        )


def _language_method(manifest: DatasetManifest, method: LanguageMethod | None, folder: Path) -> LanguageMethod | None:
    known = () if LABEL in manifest.columns else _METHODS.get(manifest.format, ())
    if method is None and LABEL in manifest.columns:
        return None
    if not known and method is None:
        raise ConfigError(
            f"{folder}: no method learns from its rows (format {manifest.format}) yet: rows with a '{LABEL}', "
            "texts, chats and pairs have one. Build the dataset with --label, or with another --format."
        )
    if method is not None and method not in known:
        fields = " and ".join(known) or "classify"
        formats = " or ".join(str(name) for name, methods in _METHODS.items() if method in methods)
        raise ConfigError(
            f"--method {method}: rows of format {manifest.format}, as {folder} has them, are for "
            f"{fields}. Leave --method out, or build rows of format {formats}: 'assay data build --format'."
        )
    return method or known[0]


def _language(
    dataset: Dataset, method_type: LanguageMethod, model: str | None, grader: Mapping[str, Any] | None
) -> Iterator[tuple[str, str]]:
    manifest = dataset.manifest
    yield "method:", ""
    if method_type == "sft":
        yield "  type: sft", "next-token prediction; compared by loss per row"
        if manifest.format == "chat":
            yield "  train_on: spans", "the assistant's messages; 'all' also trains on prompts"
        else:
            yield "  train_on: all", "every token of a row but its first"
    elif method_type == "reward":
        yield "  type: reward", "a language model with a scalar head at the last token; compared by accuracy"
        yield "  centring: 0.01", "keeps rewards near zero"
        if MARGIN not in manifest.columns:
            yield "  margin_column: null", "the rows have no margins"
    elif method_type == "grpo":
        yield from _rewards(dataset, model, grader or _exact_match(dataset.manifest))
    else:
        yield "  type: dpo", "a language model learns to prefer the chosen completion; compared by accuracy"
        yield "  loss: {type: sigmoid, beta: 0.1}", "a smaller beta allows more divergence from the reference"
        if set(REFERENCE_LOGPROBS) <= manifest.columns.keys():
            yield "  reference: {type: columns}", "log-probabilities that 'assay data score' wrote"
        else:
            yield (
                "  reference: {type: frozen}",
                "the initial model, evaluated in every step; 'assay data score' precomputes it",
            )
    yield "  model:", ""
    if model is not None:
        yield f"    type: pretrained\n    path: {_flow(model)}", "its tokenizer must be the one of the dataset"
        yield (
            "    # lora: {rank: 16, alpha: 32}",
            "trains adapters only: far less memory, ten times the learning rate",
        )
        return
    width, layers = _model_size(manifest)
    yield "    type: new", "random weights; 'assay train new --model FOLDER' uses pretrained ones"
    yield f"    vocab_size: {_vocabulary(dataset)}", "of the dataset's tokenizer"
    yield f"    hidden_size: {width}", f"small, for {count_text(manifest.num_tokens)} tokens"
    yield f"    num_layers: {layers}", "more learn more, and more slowly"
    yield f"    num_heads: {max(2, width // 32)}", "of width 32"
    yield f"    intermediate_size: {3 * width}", "three times the width, as gated layers have it"
    max_tokens, longest = _max_tokens(manifest), manifest.lengths.max
    what = "room for longer pairs, prompts and answers" if max_tokens > longest else "no row is longer"
    yield f"    max_tokens: {max_tokens}", f"the longest row has {longest}; {what}"
    yield "    tie_embeddings: true", "one matrix for input and output embeddings"


def _max_tokens(manifest: DatasetManifest) -> int:
    """Return the context length of a new language model; for chats and pairs, more than the longest row.

    Later training may have longer pairs, and completions follow prompts; rotary positions cost no weights.
    Texts are cut to rows, whose length is also the window for bits per byte.
    """
    longest = manifest.lengths.max
    if manifest.format == "text":
        return longest
    return 1 << (max(2 * longest, longest + _COMPLETION_TOKENS) - 1).bit_length()


def _exact_match(manifest: DatasetManifest) -> dict[str, str]:
    """Return a grader that compares with the field that looks like a reference answer."""
    fields = manifest.item_fields or {}
    always = [name for name, rows in fields.items() if rows == manifest.num_rows]
    field = next((name for name in _REFERENCE_FIELDS if name in always), None)
    if field is None:
        raise ConfigError(
            f"dataset '{manifest.name}': no field of its items has the name of a reference answer "
            f"({', '.join(_REFERENCE_FIELDS)}); they have {', '.join(sorted(fields)) or 'no known fields'}. Build it "
            "with the right answer as 'answer', or write the recipe by hand: docs/methods.md, GRPO."
        )
    reference = f"{{{{ item.{field} }}}}"
    return {"type": "string_check", "operation": "eq", "input": "{{ sample.output_text }}", "reference": reference}


def _rewards(dataset: Dataset, model: str | None, grader: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    manifest = dataset.manifest
    yield "  type: grpo", "completions are sampled and graded; better ones become more likely"
    yield "  rewards:", ""
    yield f"    - grader: {_flow(grader)}", "see docs/suites.md for others"
    yield f"  group_size: {_GROUP_SIZE}", "completions of each prompt, compared with each other"
    longest = _completion_tokens(manifest, model)
    stop = _stop_of_rows(dataset, model)
    stops = f", stop: [{_flow(stop)}]" if stop else ""
    yield f"  sampling: {{max_tokens: {longest}{stops}}}", "longer completions are cut"


def _stop_of_rows(dataset: Dataset, model: str | None) -> str | None:
    """Return the dataset's end-of-completion token if the model's folder does not name it."""
    boundaries = dataset.manifest.boundaries
    if boundaries is None or model is None or not boundaries.end_ids:
        return None
    ends = PretrainedCausalConfig(type="pretrained", path=model).end_ids()
    if set(ends) & set(boundaries.end_ids):
        return None
    known = tokenizer_of(dataset.folder, dataset.manifest, None, "Build the dataset again.")
    return load_tokenizer(known.path).id_to_token(boundaries.end_ids[0])


def _completion_tokens(manifest: DatasetManifest, model: str | None) -> int:
    """Return the completion length: what the model's context leaves after the longest prompt, at most the
    usual."""
    shape = PretrainedCausalConfig(type="pretrained", path=model).shape() if model else None
    max_tokens = _COMPLETION_TOKENS if shape is None else shape.max_tokens - manifest.lengths.max
    return max(1, min(_COMPLETION_TOKENS, max_tokens))


def _rate(method_type: LanguageMethod | None, model: str | None) -> tuple[float, str]:
    """Return a learning rate and its reason.

    For pretrained language models it scales with 1/sqrt(parameters): Adam's best rate scales with 1/width (Yang
    et al. 2022, arXiv:2203.03466), and parameters grow with width^2. The rates with which recipes/preferences
    and recipes/rl learn (2.0e-4 for 0.2 M parameters, 3.0e-4 for 0.1 M) are on this line.
    """
    if model is None:
        return _NEW_RATE, "usual for a small new model; use a tenth if the loss jumps"
    if method_type is None:
        return 5e-5, "usual for fine-tuning encoders"
    usual = _PRETRAINED_RATES[method_type]
    weights = PretrainedCausalConfig(type="pretrained", path=model).num_parameters()
    if weights is None:
        return usual, "usual for fine-tuning"
    found = min(_NEW_RATE, usual * math.sqrt(_USUAL_WEIGHTS / weights))
    return (
        found,
        f"{usual:.1e} is usual for 7 B weights; these are {count_text(weights)}, and smaller take more",
    )


def _trainer(sizes: _Sizes, rate: tuple[float, str]) -> Iterator[tuple[str, str]]:
    warmup = max(1, sizes.steps // 20)
    evaluate_every = 2 * sizes.commit_every
    yield "trainer:", ""
    yield f"  epochs: {sizes.epochs}", f"passes over the rows: {number_of(sizes.steps, 'step')} in all"
    yield f"  commit_every: {sizes.commit_every}", "steps between commits, the most that a failure can lose"
    if evaluate_every < sizes.steps:
        yield (
            f"  evaluate_every: {evaluate_every}",
            "steps between evaluations on the held-out rows; one more at the end",
        )
    yield "  optimizer:", ""
    yield f"    learning_rate: {rate[0]:.1e}", f"the peak; {rate[1]}"
    yield (
        f"    schedule: {{type: cosine, warmup_steps: {warmup}}}",
        "warms up for 5% of the steps, then decays to a tenth",
    )
    yield "retention:", ""
    num_commits = -(-sizes.steps // sizes.commit_every)
    yield "  keep_last: 2", f"newest commits that stay and can be evaluated later; {num_commits} keeps all"
    yield "  keep_best: 1", "and the best one by the held-out rows"


def _label(train: DatasetView) -> Iterator[tuple[str, str]]:
    manifest = train.dataset.manifest
    counts = manifest.label_counts
    if counts and counts.keys() <= {"0", "1"}:
        share = counts.get("1", 0) / sum(counts.values())
        yield "  label: {type: binary}", f"0 or 1; {tenths_text(share)} are 1; compared by AUC"
        return
    is_text = not manifest.columns[LABEL].startswith(("int", "uint", "bool"))
    if counts and (is_text or len(counts) <= FEW):
        if len(counts) == 2:
            rarer = min(sorted(counts), key=lambda label: counts[label])
            yield (
                f"  label: {{type: binary, positive: {_flow(rarer)}}}",
                (
                    f"'{rarer}' counts as 1: {tenths_text(counts[rarer] / sum(counts.values()))} of the rows; "
                    "compared by AUC"
                ),
            )
            return
        names = sorted(
            counts,
            key=lambda label: (
                not label.lstrip("-").isdecimal(),
                len(label) if label.isdecimal() else 0,
                label,
            ),
        )
        most = max(counts, key=lambda label: counts[label])
        yield (
            f"  label: {{type: classes, names: {_flow(names)}}}",
            (
                f"the most frequent is '{most}', {tenths_text(counts[most] / sum(counts.values()))}; "
                "compared by accuracy"
            ),
        )
        return
    labels = np.concatenate(
        [
            train.read(group, [LABEL])[LABEL].cast(pa.float64()).to_numpy()
            for group in np.flatnonzero(train.num_rows).tolist()
        ]
    )
    mean, scale = (float(f"{value:.4g}") for value in (labels.mean(), labels.std() or 1.0))
    yield (
        f"  label: {{type: number, mean: {mean!r}, scale: {scale!r}}}",
        ("mean and spread of the labels: the model learns how far off the mean a row is; compared by absolute error"),
    )


def _columns(manifest: DatasetManifest) -> _Columns:
    found = _Columns([], [], [])
    for column in manifest.column_profiles:
        if column.name in (LABEL, KEY, TIME, TOKENS, MASK):
            continue
        is_number = column.type.startswith(("int", "uint", "float", "double", "halffloat"))
        if column.missing_rate >= 1 or not (is_number or column.top_values):
            found.left_out.append(column.name)
        elif is_number:
            (found.left_out if column.minimum == column.maximum else found.numeric).append(column.name)
        else:
            (found.categorical if _is_informative(column, manifest.num_rows) else found.left_out).append(column.name)
    return found


def _is_informative(column: ColumnProfile, num_rows: int) -> bool:
    """Return whether the column has several values that repeat."""
    present = num_rows * (1 - column.missing_rate)
    listed = sum(count for _, count in column.top_values)
    has_several = len(column.top_values) > 1 or column.missing_rate > 0
    return has_several and (len(column.top_values) < 20 or listed >= 0.05 * present) and listed > len(column.top_values)


def _split(dataset: Dataset) -> tuple[HashSplit, DatasetView]:
    """Return a split by the key, else by a column with many values, else by the text, with a seed that holds
    out about the requested share."""
    manifest = dataset.manifest
    fraction = 0.2 if manifest.num_rows < FEW_ROWS else 0.1
    several = [
        profile for profile in manifest.column_profiles if len(profile.top_values) >= 10 and profile.name != LABEL
    ]
    columns = [KEY] if KEY in manifest.columns else [*(profile.name for profile in several), TOKENS]
    for column in columns:
        for seed in range(_SEEDS):
            split = HashSplit(column=column, validation_fraction=fraction, seed=seed)
            try:
                train = split_view(dataset, split, "train")
            except ConfigError:  # one side would be empty
                continue
            held_out = 1 - int(train.num_rows.sum()) / manifest.num_rows
            if fraction / 2 <= held_out <= 2 * fraction:
                return _without_leaks(dataset, split), train
    raise ConfigError(
        f"{dataset.folder}: no column says which rows to hold out"
        f"{f' ({columns[0]} has too few values)' if columns else ''}. Build the dataset with another "
        "--group-by, or without one: then each text is by itself."
    )


def _without_leaks(dataset: Dataset, split: HashSplit) -> HashSplit:
    """Drop leaking rows from validation if they are many and other rows remain."""
    leak = quick_leaks(dataset, split)
    if leak is None or not warnings_of_leaks(leak.num_rows, leak.num_validation_rows):
        return split
    has_others = leak.num_rows < leak.num_validation_rows
    return split.model_copy(update={"drop_leaks": True}) if has_others else split


def _sizes(num_rows: int, epochs: int | None, *, pretrained: bool) -> _Sizes:
    batch = min(128, max(2 * LANES, 1 << (num_rows // 100).bit_length()))
    per_epoch = -(-num_rows // batch)
    if epochs is None:
        needed = TARGET_STEPS // 2 if pretrained else TARGET_STEPS
        epochs = 1 if num_rows >= MANY_ROWS else min(MOST_EPOCHS, max(2, -(-needed // per_epoch)))
    steps = epochs * per_epoch
    return _Sizes(batch, epochs, steps, min(500, max(1, steps // 10)))


def _model_size(manifest: DatasetManifest) -> tuple[int, int]:
    if manifest.num_tokens < 20_000_000 and not gpus_here():
        return 64, 2
    return (128, 2) if manifest.num_tokens < 100_000_000 and not gpus_here() else (256, 4)


def _vocabulary(dataset: Dataset) -> int:
    needed = dataset.manifest.max_token_id + 1
    file = dataset.folder / TOKENIZER_FILE
    return max(needed, num_token_ids(load_tokenizer(file))) if file.is_file() else needed


def _machine() -> str:
    gpus = gpus_here()
    cores = os.cpu_count() or 1
    return (
        f"{len(gpus)} GPU ({gpus[0]})"
        if gpus
        else f"{cores} CPU cores: --workers {1 << (cores.bit_length() - 1)} uses them"
    )


def _flow(value: str | Sequence[str] | Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, default_flow_style=True, width=10**9, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
