"""The interface of samplers: the model under test, or the judge of a model grader.

A sampler is an OpenAI-compatible endpoint (`assay.scoring.http_sampler`), a model in this process
(`assay.inference.local.local_model`), or a fake in a test.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, TypedDict

from pydantic import Field, NonNegativeFloat, PositiveInt

from assay.base.config import FrozenConfig
from assay.base.errors import AssayError, ConfigError
from assay.scoring.item_failure import ItemFailure, ItemFailureKind


class Message(TypedDict):
    """A chat message."""

    role: str
    content: str


class Sampling(FrozenConfig):
    """Sampling parameters."""

    temperature: NonNegativeFloat = 0.0
    """0 is greedy decoding."""

    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Sample from the smallest set of tokens with at least this probability."""

    top_k: PositiveInt | None = None
    """Sample from the most probable tokens only, before `top_p` is applied; null: all tokens."""

    max_tokens: PositiveInt = 256
    """Maximum length of a completion in tokens."""

    seed: int | None = None
    """Makes sampling repeatable, if the endpoint supports it."""

    stop: tuple[str, ...] = ()
    """The completion ends before the first of these strings."""


CUT_REASONS = frozenset({"length", "max_tokens", "model_length", "max_output_tokens"})
"""Finish reasons of various endpoints for a completion that reached its token limit."""


class Completion(NamedTuple):
    """A completion and its token counts."""

    text: str
    finish_reason: str = "stop"
    """`stop`, `length` if `max_tokens` was reached, or the endpoint's own reason; `unknown` without one."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_cut: int = 0
    """Tokens cut from the beginning of the prompt because the context was too short."""


SamplerErrorKind = Literal["timeout", "server", "request", "refusal"]

_FAILURE_KINDS: dict[SamplerErrorKind, ItemFailureKind] = {
    "timeout": "sampler_timeout",
    "server": "sampler_server",
    "request": "sampler_request",
    "refusal": "sampler_refusal",
}


class SamplerError(AssayError):
    """Raised if an endpoint returns no completion."""

    def __init__(self, kind: SamplerErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    def failure(self) -> ItemFailure:
        return ItemFailure(_FAILURE_KINDS[self.kind], str(self))


class Sampler(Protocol):
    """Prompts in, completions out, in the same order."""

    @property
    def name(self) -> str:
        """Model name, which is part of the digest of what it judged."""
        ...

    def sample(self, prompts: Sequence[Sequence[Message]], sampling: Sampling) -> list[Completion | SamplerError]:
        """Return one completion, or the error, for each conversation."""
        ...


class Embedder(Protocol):
    """Texts to vectors, for cosine similarity."""

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector for each text, all of equal length. Raises `SamplerError`."""
        ...


def check_prompt_budget(takes: int, sampling: Sampling, of: str = "") -> None:
    """Raise `ConfigError` if `max_tokens` leaves a model with a context of `takes` tokens none for the prompt.

    `of` prefixes the message, e.g. `judge: `.
    """
    if sampling.max_tokens >= takes:
        raise ConfigError(
            f"{of}a completion may have {sampling.max_tokens:,} tokens (sampling.max_tokens), but the model's "
            f"context of {takes:,} tokens must also hold the prompt. Set sampling.max_tokens to less."
        )


def as_text(messages: Sequence[Message]) -> str:
    """Render a conversation as plain text for models without a chat template: `Role: content` lines.

    A single message is rendered as its content alone. Otherwise every line except a system message has its role as
    a prefix, and the text ends with `Assistant:`.
    """
    if len(messages) == 1:
        return messages[0]["content"]
    lines = [
        message["content"] if message["role"] == "system" else f"{message['role'].capitalize()}: {message['content']}"
        for message in messages
    ]
    return "\n".join([*lines, "Assistant:"])
