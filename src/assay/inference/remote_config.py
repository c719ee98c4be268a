"""The configuration of the sampler: this process, or a remote engine; imports no torch."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from assay.base.config import FrozenConfig


class LogprobGap(FrozenConfig):
    """How far the log-probabilities of engine and trainer may differ for the same tokens and weights."""

    bound: PositiveFloat = 0.05
    """Nats per token. In bfloat16, implementations differ by thousandths; other temperatures or weights by tenths.
    """

    on_excess: Literal["refuse", "truncate"] = "refuse"
    """`refuse`: if the step's mean exceeds the bound, the run stops without the update. `truncate`: each token
    beyond it is weighted by min(trainer / engine, `max_weight`) (Ionides 2008, J. Comput. Graph. Stat. 17(2)).
    """

    max_weight: float = Field(default=2.0, ge=1.0)
    """Largest weight of `truncate`."""


class LocalSampler(FrozenConfig):
    """The training process."""

    type: Literal["local"] = "local"


class RemoteSampler(FrozenConfig):
    """An OpenAI-compatible engine that takes and returns tokens: vLLM (docs/generation.md)."""

    also_called: ClassVar = {"base_url": "url", "endpoint": "url"}

    type: Literal["remote"]

    url: str
    """E.g. `http://engine:8000/v1`; its key, if it needs one, is $OPENAI_API_KEY."""

    model: str
    """Name at the engine."""

    folder: str
    """Hands each step's weights over: an existing folder of this run alone, with the same absolute path on both
    sides.
    """

    logprob_gap: LogprobGap = LogprobGap()
    """Allowed disagreement."""

    concurrency: PositiveInt = 64
    """Groups in flight per rank."""

    timeout_s: PositiveFloat = 600.0
    """Longest wait for one completion, and for weights to load."""

    max_retries: NonNegativeInt = 6
    """Retries of a request that got 408, 409, 429, 5xx or no response: after 0.5 s, 1 s, 2 s, ..."""

    @model_validator(mode="after")
    def _can_be_reached(self) -> "RemoteSampler":
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: '{self.url}' is none. Write e.g. http://localhost:8000/v1")
        if not Path(self.folder).is_absolute():
            raise ValueError(f"folder: '{self.folder}' is not absolute, so the engine would look elsewhere")
        return self
