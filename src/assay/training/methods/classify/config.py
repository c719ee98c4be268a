"""The classifier's configuration."""

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from assay.base.errors import ConfigError
from assay.data.dataset.columns import holds_lists, holds_numbers
from assay.models.config import EncoderConfig, ModelSize, NewEncoderConfig, checkpoint_path
from assay.models.flops import ModelFlops, encoder_flops
from assay.records.dataset import DatasetManifest
from assay.training.methods.classify.label_config import BinaryLabel, LabelConfig, NumberLabel
from assay.training.trainer.method_config import MethodConfig, Predictions

NUMERIC_BUCKETS = 129
"""Buckets by quarter octaves of |x| + 1: 0 for missing values, 1 to 64 for negative numbers, 65 to 128 for others."""
_TOKEN_TYPES = 2


class ClassifyConfig(MethodConfig):
    """A transformer encoder over the tokens, embeddings of metadata, and a head that predicts the label."""

    type: Literal["classify"] = "classify"

    encoder: EncoderConfig

    label: LabelConfig = BinaryLabel()
    """What is predicted: 0 or 1, one of several classes, or a number."""

    categorical_columns: tuple[str, ...] = ()
    """Metadata columns with names, each hashed into one of `category_buckets`."""

    numeric_columns: tuple[str, ...] = ()
    """Metadata columns with numbers; embedded by order of magnitude (quarter octaves)."""

    category_buckets: PositiveInt = 256
    """Embeddings per column."""

    head_dropout: float = Field(default=0.1, ge=0.0, lt=1.0)

    @property
    def metadata_columns(self) -> tuple[str, ...]:
        return (*self.categorical_columns, *self.numeric_columns)

    @property
    def columns(self) -> tuple[str, ...]:
        return ("input_ids", "label", *self.metadata_columns)

    @property
    def coded(self) -> str | None:
        """The loss of a number is a squared error."""
        return None if isinstance(self.label, NumberLabel) else "labels"

    @property
    def predictions(self) -> Predictions:
        return self.label.predictions

    def label_problem(self, label: str | float) -> str | None:
        return self.label.problem_of(label)

    def check_dataset(self, manifest: DatasetManifest) -> None:
        """Raise `ConfigError` if the encoder's tables are too small, its folder is missing, or labels are of
        another kind."""
        self.label.check_dataset(manifest)
        self._check_metadata(manifest)
        if not isinstance(self.encoder, NewEncoderConfig):
            checkpoint_path(self.encoder.path)
            return
        if (longest := manifest.lengths.max) > self.encoder.max_tokens:
            raise ConfigError(
                f"method.encoder.max_tokens={self.encoder.max_tokens}, but the longest row of dataset "
                f"'{manifest.name}' has {longest} tokens. Use max_tokens={longest} or more."
            )
        if (largest := manifest.max_token_id) >= self.encoder.vocab_size:
            raise ConfigError(
                f"method.encoder.vocab_size={self.encoder.vocab_size}, but dataset '{manifest.name}' holds "
                f"token {largest}. Use the vocabulary size of its tokenizer, {largest + 1} or more."
            )

    def _check_metadata(self, manifest: DatasetManifest) -> None:
        for name in self.numeric_columns:
            if not holds_numbers(kind := manifest.columns[name]):
                raise ConfigError(
                    f"method.numeric_columns: column '{name}' has type {kind}, and no numbers. Name it in "
                    "method.categorical_columns instead."
                )
        for name in self.categorical_columns:
            if holds_lists(kind := manifest.columns[name]):
                raise ConfigError(
                    f"method.categorical_columns: column '{name}' has type {kind}, and no name a row. Leave it out."
                )

    def num_parameters(self) -> int | None:
        """Return the number of parameters, embeddings and head included; None for a pretrained encoder."""
        encoder = self.encoder
        if not isinstance(encoder, NewEncoderConfig):
            return None
        width = encoder.hidden_size
        norm = 2 * width
        embeddings = (encoder.vocab_size + encoder.max_tokens + _TOKEN_TYPES) * width + norm
        attention = 4 * _linear(width, width) + norm
        feed_forward = _linear(width, encoder.intermediate_size) + _linear(encoder.intermediate_size, width) + norm
        buckets = len(self.categorical_columns) * (self.category_buckets + 1)
        buckets += len(self.numeric_columns) * NUMERIC_BUCKETS
        head = _linear(width, width) + _linear(width, self.label.num_outputs)
        return embeddings + encoder.num_layers * (attention + feed_forward) + buckets * width + head

    def model_flops(self) -> ModelFlops | None:
        return None if self.encoder.shape is None else encoder_flops(self.encoder.shape)

    def size(self, num_tokens: int) -> ModelSize | None:
        encoder = self.encoder
        shape = encoder.shape
        parameters = self.num_parameters() if isinstance(encoder, NewEncoderConfig) else encoder.num_parameters()
        if shape is None or parameters is None:
            return None
        return ModelSize(parameters, shape.activation_numbers(num_tokens))

    @model_validator(mode="after")
    def _columns_have_names_of_their_own(self) -> "ClassifyConfig":
        if reserved := {"label", "predicted", "prediction", "probability"} & set(self.metadata_columns):
            raise ValueError(f"a metadata column is named {min(reserved)}, like a label or a prediction. Rename it")
        return self

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> "ClassifyConfig":
        if len(set(self.metadata_columns)) < len(self.metadata_columns):
            raise ValueError("a metadata column is named twice among categorical_columns and numeric_columns")
        return self


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs
