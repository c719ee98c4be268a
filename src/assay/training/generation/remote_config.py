"""What a user chooses about who answers: the engine of this process, or one of another; imports no torch."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from assay.base.config import FrozenConfig


class LogProbGap(FrozenConfig):
    """How far engine and trainer may be apart about tokens of which both have the weights."""

    bound: PositiveFloat = 0.05
    """Nats. In bfloat16, kernels of two programs are some thousandths apart; another temperature or other
    weights, tenths."""

    on_excess: Literal["refuse", "truncate"] = "refuse"
    """`refuse`: a step whose tokens are further apart in the mean is not learned, and the run stops.
    `truncate`: each token that is further apart is weighed by what the trainer says over what the engine said,
    at most `max_weight` (truncated importance sampling: Ionides 2008, J. Comput. Graph. Stat. 17(2); of engines
    and trainers: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training")."""

    max_weight: float = Field(default=2.0, ge=1.0)
    """The largest weight of `truncate`."""


class LocalSampler(FrozenConfig):
    """The process that trains."""

    type: Literal["local"] = "local"


class RemoteSampler(FrozenConfig):
    """An OpenAI-compatible engine that takes and gives tokens: vLLM (docs/generation.md)."""

    also_called: ClassVar = {"base_url": "url", "endpoint": "url"}

    type: Literal["remote"]

    url: str
    """E.g. `http://engine:8000/v1`; the key is $OPENAI_API_KEY, where it wants one."""

    model: str
    """As the engine calls what it serves."""

    folder: str
    """Where weights are handed over, a step's in the place of the last one's: a folder of this run alone,
    that is there, and that the engine sees under the same absolute path."""

    log_prob_gap: LogProbGap = LogProbGap()
    """What becomes of a step when engine and trainer do not say the same."""

    concurrency: PositiveInt = 64
    """Groups that each rank has asked for at a time."""

    timeout_s: PositiveFloat = 600.0
    """Longest wait for one answer, and for weights to be loaded."""

    max_retries: NonNegativeInt = 6
    """Times that a question is asked again where the answer was 408, 409, 429, 5xx or none, after 0.5 s, 1 s,
    2 s, ...: half a minute."""

    @model_validator(mode="after")
    def _can_be_reached(self) -> "RemoteSampler":
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: '{self.url}' is none. Write e.g. http://localhost:8000/v1")
        if not Path(self.folder).is_absolute():
            raise ValueError(f"folder: '{self.folder}' is not absolute, so the engine would look elsewhere")
        return self
