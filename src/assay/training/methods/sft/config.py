"""The configuration of supervised fine-tuning."""

import math
from typing import ClassVar, Literal

from assay.base.errors import ConfigError
from assay.data.dataset.columns import SPANS
from assay.data.loader.batch import MicroBatch
from assay.models.causal_config import CausalConfig, check_rows, model_size
from assay.models.config import ModelSize
from assay.models.flops import ModelFlops, causal_flops
from assay.records.dataset import DatasetManifest
from assay.records.evaluation import TRAINED_TOKENS, Metric
from assay.training.trainer.method_config import MethodConfig, RowScores

NATS_PER_TOKEN = Metric(name="nats_per_token", unit="nats a token", higher_is_better=False)
TOKEN_ACCURACY = Metric(name="token_accuracy", unit="share", higher_is_better=True)


class SftConfig(MethodConfig):
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

    @property
    def takes_lines(self) -> bool:
        return self.model.takes_lines

    @property
    def may_compile(self) -> bool:
        return self.model.lora is None

    @property
    def window_tokens(self) -> int | None:
        shape = self.model.shape()
        return None if shape is None else shape.max_tokens

    def check_dataset(self, manifest: DatasetManifest) -> None:
        check_rows(self.model, manifest, "method.model")
        if self.train_on == "all" and manifest.lengths.max < 2:
            raise ConfigError(
                f"dataset '{manifest.name}' has only rows of one token, and a first token is not "
                "predicted: there is nothing to train on. Build it with longer rows."
            )

    def model_flops(self) -> ModelFlops | None:
        return causal_flops(self.model)

    def num_scored(self, batch: MicroBatch, weight: int) -> int:  # noqa: ARG002
        return weight

    def size(self, num_tokens: int) -> ModelSize | None:
        return model_size(self.model, num_tokens)

    def num_parameters(self) -> int | None:
        return self.model.num_parameters()
