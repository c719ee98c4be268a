"""Predicts for the rows of a file, in order, with a run's or an exported model.

    FILE --(in batches)--> text and columns --> tokens --> model --> the row with its predictions

Only one batch is in memory. A row without text keeps its position with empty predictions, and is reported. An
invalid row raises an error with its position in the file; `OUT` appears only at the end, so a partial output is
never mistaken for the whole.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from tokenizers import Tokenizer

from assay.base.config import stored
from assay.base.errors import ConfigError, DataError
from assay.data.dataset.columns import LABEL, TOKENS
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.formats.boundaries import control_tokens, encode_as_text, pattern_of
from assay.data.dataset.formats.encode import Encoder, UsableRow
from assay.data.dataset.formats.rows import FIELDS, RenderedRow, RowReader, nested
from assay.data.dataset.formats.template import ChatTemplate, tokenizer_template
from assay.data.dataset.raw.find import find_spans
from assay.data.dataset.raw.propose import TEXT
from assay.data.dataset.raw.span import Row
from assay.data.dataset.tokens import TOKENIZER_FILE, load_tokenizer, special_tokens, tokenizer_of, tokenizer_settings
from assay.evals.commit_model import load_committed
from assay.evals.row_predictor import RowPredictor
from assay.models.causal import longest_sequence
from assay.models.reward_network import RewardNetwork
from assay.records.commit import Commit
from assay.records.dataset import Format
from assay.records.exported_model import EXPORT_FILE, ExportedModel
from assay.records.run import Run
from assay.store.objects import open_store
from assay.training.methods.registry import loadable_method
from assay.training.recipe import Recipe, recipe_of
from assay.workflows.export.export import NAME_IT
from assay.workflows.export.row_files import REWARD_FORMATS, of_header, text_of

REWARD_NAMES = {1: ("reward",), 2: ("chosen_reward", "rejected_reward")}
"""Names of a row's rewards by the number of its sequences."""


class RewardRows(NamedTuple):
    """Reads rows with the tokenizer and template of a reward model."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    end: str
    """Token appended to a text or completion; empty for none."""
    max_tokens: int
    """Maximum sequence length of the model."""

    @classmethod
    def of(cls, tokenizer: Path, max_tokens: int) -> "RewardRows":
        """Use the template and settings next to the tokenizer."""
        special = special_tokens(tokenizer_settings(tokenizer))
        template = tokenizer_template(tokenizer, special)
        return cls(load_tokenizer(tokenizer), template, special.get("eos_token", ""), max_tokens)

    def sequences(self, row: Row, where: str, text: str) -> list[list[int]]:
        """Return the tokens of each sequence of a row; empty if it has no text."""
        present = {name for name, value in row.items() if value is not None}
        roots = {name.partition(".")[0] for name in present}
        kinds: list[Format] = [
            kind for kind in REWARD_FORMATS if any(roots.issuperset(fields) for fields in FIELDS[kind])
        ]
        if not kinds and text not in row:
            raise DataError(
                f"{of_header(where)}: no column '{text}', and no pair (chosen, rejected), conversation "
                f"(messages) or completion (prompt, completion); it has {', '.join(row)}. Name "
                "the text's column: --text NAME."
            )
        reader = RowReader(
            kinds[0] if kinds else "text",
            text,
            self.template,
            self.end,
            pattern_of(control_tokens(self.tokenizer, self.template)),
            control_is_text=True,
        )
        rendered = reader.read(nested(row), where)
        return [] if rendered is None else self._tokens(rendered, where)

    def _tokens(self, rendered: RenderedRow, where: str) -> list[list[int]]:
        encoder = Encoder(self.tokenizer, "chat", "", self.max_tokens, drops_unusable=False, end=self.end)
        (encodings,) = encoder.encodings([UsableRow(where, {}, rendered)])
        found = [encoding.ids for encoding in encodings]
        if (longest := max(map(len, found))) > self.max_tokens:
            raise DataError(
                f"{where}: {longest} tokens, and the model's limit is {self.max_tokens}. Shorten or drop the row."
            )
        return found


ROWS_AT_ONCE = 512
STAND_IN = [0]
"""Tokens for a row without text; its predictions are discarded."""
Progress = Callable[[int, int], None]


class Predictor(NamedTuple):
    """A model that is ready to predict."""

    row_predictor: RowPredictor
    tokenizer: Tokenizer
    columns: Mapping[str, pa.DataType]
    """Types of the columns that the model reads besides the text."""
    max_tokens: int
    """Maximum sequence length; longer texts are cut, as in training."""
    rewards: RewardRows | None = None
    """How a reward model reads rows; None for other models."""
    text: str = ""
    """Text field of the training data; empty if unknown."""


def exported_predictor(folder: Path) -> Predictor:
    """Load a model written by `assay runs export`. No code in the folder runs; changed files are rejected."""
    path = folder / EXPORT_FILE
    exported = ExportedModel.from_json(path.read_bytes(), source=path)
    recipe = stored(Recipe, exported.recipe, where=f"{path}: the recipe", wrote=exported.exported_by)
    method = loadable_method(recipe.method)
    model = method.load_exported(folder)
    row_predictor = RowPredictor(method, model)
    if isinstance(model, RewardNetwork):
        return _rewarder(row_predictor, model, folder / TOKENIZER_FILE)._replace(text=exported.text)
    types = {name: _type(name, text, path) for name, text in exported.columns.items()}
    predictor = _predictor(row_predictor, folder / TOKENIZER_FILE, exported.max_tokens, types)
    return predictor._replace(text=exported.text)


def run_predictor(run: Run, commit: Commit, *, tokenizer: Path | None) -> Predictor:
    """Load the model of a run's commit."""
    recipe = recipe_of(run)
    method = loadable_method(recipe.method)
    dataset = Dataset.open(Path(recipe.data.dataset))
    known = tokenizer_of(dataset.folder, dataset.manifest, tokenizer, NAME_IT)
    model = load_committed(run, commit, open_store(run.store_url))
    field = dataset.manifest.text_field
    if isinstance(model, RewardNetwork):
        return _rewarder(RowPredictor(method, model), model, known.path)._replace(text=field)
    columns = dataset.manifest.columns
    read = {name: columns[name] for name in recipe.method.columns if name != TOKENS}
    types = {name: _type(name, text, dataset.folder) for name, text in read.items()}
    predictor = _predictor(RowPredictor(method, model), known.path, dataset.manifest.lengths.max, types)
    return predictor._replace(text=field)


def untrained_predictor(recipe: Recipe, model: Any, tokenizer: Path, max_tokens: int) -> Predictor:
    """Return the untrained initial model of a recipe."""
    row_predictor = RowPredictor(loadable_method(recipe.method), model)
    if isinstance(model, RewardNetwork):
        return _rewarder(row_predictor, model, tokenizer)
    names = [name for name in recipe.method.columns if name != TOKENS]
    return _predictor(row_predictor, tokenizer, max_tokens, {name: pa.null() for name in names})


def predict_rows(
    predictor: Predictor,
    file: Path,
    *,
    text: str | None,
    missing: Sequence[str],
    progress: Progress,
    textless: Callable[[str], None],
) -> Iterator[list[Row]]:
    """Yield the rows of a file with their predictions, in batches.

    `text` is the text column; None: the one that the model was trained on if the file has it, else `text`.
    `missing` are columns that the model reads and the file lacks. `textless` gets the position of each row
    without text, whose predictions are None.
    """
    spans = find_spans([file], ROWS_AT_ONCE)
    progress(0, len(spans))
    for done, span in enumerate(spans, 1):
        rows = span.rows()
        while part := list(itertools.islice(rows, ROWS_AT_ONCE)):
            known = [name for name in (predictor.text, TEXT) if name]
            name = text or next((name for name in known if name in part[0][1]), known[0])
            yield _predict(predictor, part, name, missing, textless)
        progress(done, len(spans))


def _predict(
    predictor: Predictor,
    part: Sequence[tuple[str, Row]],
    text: str,
    missing: Sequence[str],
    textless: Callable[[str], None],
) -> list[Row]:
    if predictor.rewards is not None:
        return _predict_rewards(predictor.row_predictor, predictor.rewards, part, text, textless)
    texts = [text_of(row, text, where, part) for where, row in part]
    tokens = [encoding.ids for encoding in encode_as_text(predictor.tokenizer, texts)]
    for (where, _), ids in zip(part, tokens, strict=True):
        if not ids:
            textless(where)
    columns = {name: _column(name, kind, part, is_missing=name in missing) for name, kind in predictor.columns.items()}
    # The model needs at least one token; predictions for stand-ins are discarded.
    predictions = predictor.row_predictor.predict([ids or STAND_IN for ids in tokens], columns)
    return _with_predictions(
        part,
        [
            {name: values[index] if tokens[index] else None for name, values in predictions.items()}
            for index in range(len(part))
        ],
    )


def _predict_rewards(
    row_predictor: RowPredictor,
    rewards: RewardRows,
    part: Sequence[tuple[str, Row]],
    text: str,
    textless: Callable[[str], None],
) -> list[Row]:
    of_rows = [rewards.sequences(row, where, text) for where, row in part]
    for (where, _), sequences in zip(part, of_rows, strict=True):
        if not sequences:
            textless(where)
    sequences_of_part = [tokens for sequences in of_rows for tokens in sequences]
    (rewards_found,) = row_predictor.predict(sequences_of_part, {}).values() if sequences_of_part else ([],)
    values = iter(rewards_found)
    found = [dict(zip(REWARD_NAMES[len(own)], values, strict=False)) if own else {} for own in of_rows]
    names = dict.fromkeys(name for predictions in found for name in predictions) or dict.fromkeys(REWARD_NAMES[1])
    return _with_predictions(part, [{**names, **predictions} for predictions in found])


def _with_predictions(part: Sequence[tuple[str, Row]], predictions: Sequence[Row]) -> list[Row]:
    """Merge rows and predictions; columns of the file keep their names."""
    existing = {name for _, row in part for name in row}
    return [
        {**row, **{f"predicted_{name}" if name in existing else name: value for name, value in own.items()}}
        for (_, row), own in zip(part, predictions, strict=True)
    ]


def _column(name: str, kind: pa.DataType, part: Sequence[tuple[str, Row]], *, is_missing: bool) -> pa.Array:
    if not is_missing and (lacking := next((where for where, row in part if name not in row), None)):
        raise DataError(
            f"{of_header(lacking)}: no column '{name}', which the model reads besides the text. Add it, empty "
            f"where it is unknown, or declare that it is missing in all rows: --missing {name}."
        )
    values = [row.get(name) for _, row in part]
    try:
        return _typed(values, kind)
    except (pa.ArrowException, TypeError):
        for (where, _), value in zip(part, values, strict=True):
            try:
                _typed([value], kind)
            except (pa.ArrowException, TypeError) as error:
                raise DataError(
                    f"{where}: '{name}' is {value!r:.40}, and in training it was {kind}. Fix the value, or "
                    "leave it empty if it is unknown."
                ) from error
        raise


def _typed(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Convert values to a type; texts, as in CSV, are parsed."""
    if any(isinstance(value, str) for value in values):
        return pa.array([None if value is None else str(value) for value in values], pa.string()).cast(kind)
    return pa.array(values, kind)


def _predictor(
    row_predictor: RowPredictor, tokenizer: Path, max_tokens: int, types: Mapping[str, pa.DataType]
) -> Predictor:
    loaded = load_tokenizer(tokenizer)
    loaded.enable_truncation(max_tokens)
    read = {name: kind for name, kind in types.items() if name != LABEL}
    return Predictor(row_predictor, loaded, read, max_tokens)


def _rewarder(row_predictor: RowPredictor, model: RewardNetwork, tokenizer: Path) -> Predictor:
    rows = RewardRows.of(tokenizer, longest_sequence(model.decoder.config))
    return Predictor(row_predictor, rows.tokenizer, {}, rows.max_tokens, rows)


def _type(name: str, text: str, where: Path) -> pa.DataType:
    try:
        return pa.type_for_alias(text)
    except ValueError as error:
        raise ConfigError(f"{where}: column '{name}' has type {text}, which cannot be read from files yet.") from error
