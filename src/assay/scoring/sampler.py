"""Whoever answers a prompt: the model under test, or the judge of a model-graded grader.

A sampler is an OpenAI-compatible endpoint (`assay.scoring.http_sampler`), a model of this process
(`assay.inference.local.local_model`), or a few lines in a test. Nobody who asks needs to know which.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, TypedDict

from pydantic import Field, NonNegativeFloat, PositiveInt

from assay.base.config import FrozenConfig
from assay.base.errors import AssayError, ConfigError
from assay.scoring.item_failure import ItemFailure, ItemFailureKind


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    content: str


class Sampling(FrozenConfig):
    """How a completion is drawn."""

    temperature: NonNegativeFloat = 0.0
    """0 takes the most probable token each time."""

    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Tokens beyond this much probability are never drawn."""

    top_k: PositiveInt | None = None
    """Only so many of the most probable tokens are ever drawn, before `top_p` is applied; null: all."""

    max_tokens: PositiveInt = 256
    """Longest completion."""

    seed: int | None = None
    """Makes draws repeatable, where the endpoint can."""

    stop: tuple[str, ...] = ()
    """The completion ends before the first of these."""


CUT_REASONS = frozenset({"length", "max_tokens", "model_length", "max_output_tokens"})
"""Reasons for a completion's end, as endpoints name them, where the room for it was used up."""


class Completion(NamedTuple):
    """What came back."""

    text: str
    finish_reason: str = "stop"
    """`stop`, `length` where `max_tokens` cut it short, or as the endpoint says; `unknown` where not."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_cut: int = 0
    """Those at its beginning, for which the model had no room."""


SamplerErrorKind = Literal["timeout", "server", "request", "refusal"]

_FAILURE_KINDS: dict[SamplerErrorKind, ItemFailureKind] = {
    "timeout": "sampler_timeout",
    "server": "sampler_server",
    "request": "sampler_request",
    "refusal": "sampler_refusal",
}


class SamplerError(AssayError):
    """An endpoint that did not answer, or not with a completion."""

    def __init__(self, kind: SamplerErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    def failure(self) -> ItemFailure:
        """The failure of an item whose prompt got no completion."""
        return ItemFailure(_FAILURE_KINDS[self.kind], str(self))


class Sampler(Protocol):
    """Prompts in, completions out, in the same order."""

    @property
    def name(self) -> str:
        """The name of the model; part of the digest of whatever it judged."""
        ...

    def sample(self, prompts: Sequence[Sequence[Message]], sampling: Sampling) -> list[Completion | SamplerError]:
        """One completion for each conversation; a failure takes the place of its completion."""
        ...


class Embedder(Protocol):
    """Texts to vectors, for cosine similarity."""

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text, all of one length; raises `SamplerError`."""
        ...


def check_prompt_budget(takes: int, sampling: Sampling, of: str = "") -> None:
    """Raise `ConfigError` where the longest completion leaves a model that takes so many tokens none to read;
    `of`: whose sampling it is, with a colon."""
    if sampling.max_tokens >= takes:
        raise ConfigError(
            f"{of}an answer may have {sampling.max_tokens:,} tokens (sampling.max_tokens), but the model takes "
            f"{takes:,}, the prompt among them. Set sampling.max_tokens to less."
        )


def as_text(messages: Sequence[Message]) -> str:
    """A conversation as plain text, for models without a chat template: `Role: content` lines.

    A single message is its content and nothing else. With several, each line but a system's carries its role,
    and the text ends with `Assistant:`, for the model to go on from.
    """
    if len(messages) == 1:
        return messages[0]["content"]
    lines = [
        message["content"] if message["role"] == "system" else f"{message['role'].capitalize()}: {message['content']}"
        for message in messages
    ]
    return "\n".join([*lines, "Assistant:"])
