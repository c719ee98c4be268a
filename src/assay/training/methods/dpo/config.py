"""The configuration of direct preference optimization (DPO)."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from assay.base.config import FrozenConfig
from assay.base.errors import ConfigError
from assay.data.dataset.columns import PROMPT_TOKENS, REFERENCE_LOGPROBS, REJECTED, TOKENS
from assay.models.causal_config import NewCausalConfig, PretrainedCausalConfig, check_rows
from assay.records.dataset import DatasetManifest, ReferenceScores
from assay.records.evaluation import ACCURACY, CHOSEN_REWARD, REJECTED_REWARD, Metric
from assay.training.trainer.method_config import CausalMethodConfig, RowScores

LOSS = Metric(name="loss", unit="loss per pair", higher_is_better=False)
MARGIN = Metric(name="margin", unit="rewards", higher_is_better=True)
CHOSEN_LOGPROB = Metric(name="chosen_logprob", unit="nats per completion", higher_is_better=True)
REJECTED_LOGPROB = Metric(name="rejected_logprob", unit="nats per completion", higher_is_better=False)


class SigmoidLoss(FrozenConfig):
    """-log sigmoid(beta * (log-ratio of chosen - log-ratio of rejected))."""

    also_called: ClassVar = {"conservative": "label_smoothing", "epsilon": "label_smoothing"}

    type: Literal["sigmoid", "sigmoid_norm"] = "sigmoid"
    """`sigmoid` sums over a completion's tokens; `sigmoid_norm` takes means, so length earns nothing and beta is
    larger by about the length.
    """

    beta: PositiveFloat = 0.1
    """How strongly the policy is held to the reference."""

    label_smoothing: float = Field(default=0.0, ge=0.0, lt=0.5)
    """Assumed share of wrongly labelled pairs (conservative DPO)."""


class RobustLoss(FrozenConfig):
    """An unbiased estimate, from noisy labels, of the sigmoid loss with clean labels."""

    also_called: ClassVar = {"epsilon": "label_smoothing"}

    type: Literal["robust"]

    beta: PositiveFloat = 0.1
    """As for `sigmoid`."""

    label_smoothing: float = Field(default=0.1, ge=0.0, lt=0.5)
    """Share of wrongly labelled pairs."""


class IpoLoss(FrozenConfig):
    """The squared distance of the preference, in nats per token, from 1 / (2 beta)."""

    also_called: ClassVar = {"tau": "beta"}

    type: Literal["ipo"]

    beta: PositiveFloat = 0.1
    """The paper's tau."""


class FrozenReference(FrozenConfig):
    """A frozen model that computes log-probabilities in every step."""

    type: Literal["frozen"] = "frozen"

    path: str | None = None
    """Folder of the reference, as `method.model.path`; null: the model before the first step."""


class ColumnReference(FrozenConfig):
    """Precomputed log-probabilities: the columns `ref_chosen_logps` and `ref_rejected_logps` that `assay data score`
    writes."""

    type: Literal["columns"]

    path: str | None = None
    """Folder of the model that computed them; null: the model before the first step."""


def _with_type(tree: Any, *, usual: str) -> Any:
    """Fill in the type, so that `method.loss.beta=0.2` need not name the loss."""
    return {"type": usual, **tree} if isinstance(tree, Mapping) else tree


DpoLoss = Annotated[
    SigmoidLoss | RobustLoss | IpoLoss,
    Field(discriminator="type"),
    BeforeValidator(partial(_with_type, usual="sigmoid")),
]
Reference = Annotated[
    FrozenReference | ColumnReference, Field(discriminator="type"), BeforeValidator(partial(_with_type, usual="frozen"))
]


class DpoConfig(CausalMethodConfig):
    """A causal language model learns to prefer chosen completions."""

    also_called: ClassVar = {
        "beta": "loss",
        "loss_type": "loss",
        "label_smoothing": "loss",
        "rpo_alpha": "sft_weight",
        "ref_model": "reference",
        "base": "model",
        "encoder": "model",
    }

    type: Literal["dpo"] = "dpo"

    loss: DpoLoss = SigmoidLoss()
    """A function of the log-ratios."""

    reference: Reference = FrozenReference()
    """The reference model."""

    sft_weight: float = Field(default=0.0, ge=0.0)
    """Weight of the chosen completion's negative log-likelihood per token, added to the loss."""

    slice_columns: tuple[str, ...] = ()
    """Metadata columns that slice the evaluation."""

    @property
    def columns(self) -> tuple[str, ...]:
        reference = REFERENCE_LOGPROBS if isinstance(self.reference, ColumnReference) else ()
        return (TOKENS, REJECTED, PROMPT_TOKENS, *reference, *self.slice_columns)

    @property
    def coded(self) -> str | None:
        """The loss is that of the preference if nothing is smoothed or added."""
        is_plain = isinstance(self.loss, SigmoidLoss) and not self.loss.label_smoothing
        return "preferences" if is_plain and not self.sft_weight else None

    @property
    def predictions(self) -> RowScores:
        """Accuracy is first, because losses of other kinds or betas are not comparable."""
        return RowScores(
            (ACCURACY, LOSS, MARGIN, CHOSEN_LOGPROB, REJECTED_LOGPROB, CHOSEN_REWARD, REJECTED_REWARD),
            ranges={metric.name: (-math.inf, 0.0) for metric in (CHOSEN_LOGPROB, REJECTED_LOGPROB)},
        )

    def check_dataset(self, manifest: DatasetManifest) -> None:
        check_rows(self.model, manifest, "method.model")
        if isinstance(self.reference, FrozenReference) and self.reference.path is not None:
            reference = PretrainedCausalConfig(type="pretrained", path=self.reference.path)
            check_rows(reference, manifest, "method.reference")
        if isinstance(self.reference, ColumnReference) and manifest.scored is not None:
            self._check_columns(manifest, manifest.scored)

    def _check_columns(self, manifest: DatasetManifest, scored: ReferenceScores) -> None:
        """Raise `ConfigError` if the columns were computed with other weights than the reference."""
        where, path = "method.model", getattr(self.model, "path", None)
        if self.reference.path is not None:
            where, path = "method.reference", self.reference.path
        columns_text = (
            f"the columns {' and '.join(REFERENCE_LOGPROBS)} of dataset '{manifest.name}' were computed by "
            f"{scored.reference} with weights {scored.weights_digest[:12]}…"
        )
        if path is None:
            raise ConfigError(
                f"method.reference: {columns_text}; method.model.type=new has other weights. Start from a pretrained "
                "folder with these weights, or name it as method.reference.path."
            )
        # Imported here: it imports torch, which most recipes do not need.
        from assay.training.reference_model import folder_digest

        if (own := folder_digest(path)) != scored.weights_digest:
            raise ConfigError(
                f"{where}.path={path}: its weights are {own[:12]}…, but {columns_text}. Score the pairs again: "
                f"assay data score DATASET --reference {path}; or name the folder that computed them as "
                "method.reference.path."
            )

    @property
    def num_references(self) -> int:
        return int(isinstance(self.reference, FrozenReference))

    @property
    def num_frozen_copies(self) -> int:
        reference = self.reference
        is_held = isinstance(reference, FrozenReference) and (reference.path is not None or self.model.lora is None)
        return int(is_held)

    @model_validator(mode="after")
    def _reference_is_trained(self) -> "DpoConfig":
        frozen = isinstance(self.reference, FrozenReference) and self.reference.path is None
        if frozen and isinstance(self.model, NewCausalConfig):
            raise ValueError(
                "method.model.type=new has random weights, which are no useful reference. Start from "
                "a trained model (assay runs export RUN, then method.model={type: pretrained, path: "
                "FOLDER}), or name one as method.reference.path"
            )
        return self
