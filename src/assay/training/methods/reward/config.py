"""The reward model's configuration."""

import math
from typing import ClassVar, Literal

from pydantic import Field

from assay.base.errors import ConfigError
from assay.data.dataset.columns import MARGIN, PROMPT_TOKENS, REJECTED, TOKENS, holds_numbers
from assay.models.causal_config import CausalConfig, NewCausalConfig, check_rows, model_size
from assay.models.config import ModelSize
from assay.models.flops import ModelFlops, causal_flops
from assay.records.dataset import DatasetManifest
from assay.records.evaluation import ACCURACY, CHOSEN_REWARD, LOG_LOSS, REJECTED_REWARD, Metric
from assay.training.trainer.method_config import CausalMethodConfig, RowScores

MARGIN_OF_REWARDS = Metric(name="margin", unit="rewards", higher_is_better=True)


class RewardConfig(CausalMethodConfig):
    """A causal language model whose one output at a sequence's last token is the reward."""

    also_called: ClassVar = {
        "center_rewards_coefficient": "centring",
        "margin": "margin_column",
        "base": "model",
        "encoder": "model",
    }

    type: Literal["reward"] = "reward"

    model: CausalConfig
    """The language model; its own head is dropped."""

    margin_column: str | None = MARGIN
    """Column with the reward difference that a pair must exceed; null: no margins."""

    centring: float = Field(default=0.0, ge=0.0)
    """Weight of (chosen reward + rejected reward)^2, which keeps rewards near zero; 0.01 is usual."""

    slice_columns: tuple[str, ...] = ()
    """Metadata columns that slice the evaluation."""

    @property
    def columns(self) -> tuple[str, ...]:
        margins = () if self.margin_column is None else (self.margin_column,)
        return (TOKENS, REJECTED, PROMPT_TOKENS, *margins, *self.slice_columns)

    @property
    def coded(self) -> str | None:
        """With margins or centring, the loss is no -log p."""
        return "preferences" if self.margin_column is None and not self.centring else None

    @property
    def predictions(self) -> RowScores:
        """The log-loss is that of the preference, without margin and centring."""
        return RowScores(
            (ACCURACY, LOG_LOSS, MARGIN_OF_REWARDS, CHOSEN_REWARD, REJECTED_REWARD),
            ranges={LOG_LOSS.name: (0.0, math.inf)},
        )

    @property
    def window_tokens(self) -> None:
        """It generates no text."""

    def check_dataset(self, manifest: DatasetManifest) -> None:
        check_rows(self.model, manifest, "method.model")
        if self.margin_column is None:
            return
        kind = manifest.columns[self.margin_column]
        missing = sum(
            profile.missing_rate for profile in manifest.column_profiles if profile.name == self.margin_column
        )
        if not holds_numbers(kind) or missing:
            what = f"{missing:.1%} of its values are missing" if missing else f"it has type {kind}"
            raise ConfigError(
                f"method.margin_column={self.margin_column}: {what}; each row needs a number. Fix "
                "the column, or set all margins to 0: method.margin_column=null."
            )

    def model_flops(self) -> ModelFlops | None:
        return causal_flops(self.model, has_head=False)

    def size(self, num_tokens: int) -> ModelSize | None:
        """The head of a pretrained language model is counted, too."""
        held, trained = model_size(self.model, num_tokens, has_head=False), self.num_parameters()
        return held if held is None or trained is None else held._replace(parameters=trained)

    def num_parameters(self) -> int | None:
        if not isinstance(self.model, NewCausalConfig):
            return None
        width = self.model.hidden_size
        is_counted = not self.model.tie_embeddings and self.model.lora is None
        language_head = self.model.vocab_size * width if is_counted else 0
        return self.model.num_parameters() - language_head + width
