"""The configuration of supervised fine-tuning."""

import math
from typing import ClassVar, Literal

from assay.base.errors import ConfigError
from assay.data.dataset.columns import SPANS
from assay.data.loader.batch import MicroBatch
from assay.models.causal_config import CausalConfig, check_rows
from assay.records.dataset import DatasetManifest
from assay.records.evaluation import TRAINED_TOKENS, Metric
from assay.training.trainer.method_config import CausalMethodConfig, RowScores

NATS_PER_TOKEN = Metric(name="nats_per_token", unit="nats a token", higher_is_better=False)
TOKEN_ACCURACY = Metric(name="token_accuracy", unit="share", higher_is_better=True)


class SftConfig(CausalMethodConfig):
    """A causal language model learns to predict the tokens of rows."""

    also_called: ClassVar = {
        "completion_only_loss": "train_on",
        "assistant_only_loss": "train_on",
        "base": "model",
        "encoder": "model",
    }

    type: Literal["sft"] = "sft"

    model: CausalConfig
    """The model: new, or a pretrained folder."""

    train_on: Literal["all", "spans"]
    """`all`: every token but the first. `spans`: those inside `trained_spans`, a column of the dataset."""

    slice_columns: tuple[str, ...] = ()
    """Metadata columns that slice the evaluation."""

    @property
    def columns(self) -> tuple[str, ...]:
        return ("input_ids", *((SPANS,) if self.train_on == "spans" else ()), *self.slice_columns)

    @property
    def coded(self) -> str:
        return "all tokens" if self.train_on == "all" else "tokens in spans"

    @property
    def predictions(self) -> RowScores:
        """Means over each row's trained tokens."""
        ranges = {NATS_PER_TOKEN.name: (0.0, math.inf)}
        return RowScores((NATS_PER_TOKEN, TOKEN_ACCURACY), counted=TRAINED_TOKENS, ranges=ranges)

    @property
    def takes_packed_rows(self) -> bool:
        return self.model.packs

    def check_dataset(self, manifest: DatasetManifest) -> None:
        check_rows(self.model, manifest, "method.model")
        if self.train_on == "all" and manifest.lengths.max < 2:
            raise ConfigError(
                f"dataset '{manifest.name}' has only rows of one token, and a first token is not "
                "predicted: there is nothing to train on. Build it with longer rows."
            )

    def num_scored(self, batch: MicroBatch, weight: int) -> int:  # noqa: ARG002
        return weight
