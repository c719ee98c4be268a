"""What a user chooses about the regression."""

from typing import Literal

from pydantic import Field, PositiveInt

from assay.base.errors import ConfigError
from assay.records.dataset import DatasetManifest
from assay.records.evaluation import Metric
from assay.training.trainer.method_config import MethodConfig, RowScores

SQUARED_ERROR = Metric(name="squared_error", unit="squared nats of length", higher_is_better=False)
ABSOLUTE_ERROR = Metric(name="absolute_error", unit="nats of length", higher_is_better=False)


class RowLengthConfig(MethodConfig):
    """A bag of embeddings and a linear head that guess the logarithm of a row's number of tokens."""

    type: Literal["row_length"] = "row_length"

    vocab_size: PositiveInt

    width: PositiveInt = 8

    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)

    slice_columns: tuple[str, ...] = ()
    """Metadata columns that the evaluation is cut by; the model does not see them."""

    @property
    def columns(self) -> tuple[str, ...]:
        """See `MethodConfig`."""
        return ("input_ids", *self.slice_columns)

    @property
    def predictions(self) -> RowScores:
        """See `MethodConfig`."""
        return RowScores((SQUARED_ERROR, ABSOLUTE_ERROR))

    def check_dataset(self, manifest: DatasetManifest) -> None:
        """See `MethodConfig`."""
        if manifest.max_token_id >= self.vocab_size:
            raise ConfigError(
                f"method.vocab_size={self.vocab_size}, but dataset '{manifest.name}' holds token "
                f"{manifest.max_token_id}. Use {manifest.max_token_id + 1} or more."
            )

    def num_parameters(self) -> int:
        """See `MethodConfig`."""
        return self.vocab_size * self.width + self.width + 1
