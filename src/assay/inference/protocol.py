"""The protocol of models: what an engine is asked for, in this process, in another one, or behind an endpoint.

    Engine    generate, score, embed; used by evals, graders, chat and the demo. `LocalModel` runs the model in this
              process, `HttpEngine` asks an endpoint, and a worker's engine asks a process of its own

An engine process answers the same requests as messages, which travel as lines of JSON:

    load    -> ready                          first of all, once
    generate-> read   piece ...  done         chunks of all choices, in the order of sampling
    score   -> scored            done         logprob of each token given those before it, or a classifier's predictions
    embed   -> embedded          done         a vector for each text
    tokenize-> tokenized         done         text to tokens, or tokens to text
    any     -> rejected                       what is wrong, and with which parameter

A request can be cancelled; then no response follows. Imports no torch.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveInt, TypeAdapter
from typing_extensions import TypedDict

from assay.base.config import FrozenConfig
from assay.base.errors import AssayError, ConfigError
from assay.base.shapes import Float64, Int64

ModelKind = Literal["language_model", "classifier", "reward_model", "encoder"]
Reason = Literal["stop", "length"]

DEFAULT_MAX_TOKENS = 1024
"""Limit of a completion if the client sets none; memory is reserved for all of it."""
CUT_REASONS = frozenset({"length", "max_tokens", "model_length", "max_output_tokens"})
"""Finish reasons of various endpoints for a completion that reached its token limit."""


class Message(TypedDict):
    """A chat message."""

    role: str
    content: str


class SamplingParams(FrozenConfig):
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


class SamplerError(AssayError):
    """Raised if an engine returns no completion."""

    def __init__(self, kind: SamplerErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class TextBits(NamedTuple):
    """The bits of a text's tokens."""

    bits: Float64[np.ndarray, "token"]
    """[token]: -log2 of its probability given the tokens before it."""
    starts: Int64[np.ndarray, "token"]
    """[token]: the byte of the text at which it starts."""
    num_bytes: int


class Engine(Protocol):
    """A model that generates, scores and embeds; a subclass implements what it supports."""

    name: str
    """Model name, which is part of the digest of what it judged."""

    def generate(
        self,
        prompts: Sequence[Sequence[Message]],  # noqa: ARG002
        params: SamplingParams,  # noqa: ARG002
    ) -> list[Completion | SamplerError]:
        """Return one completion, or the error, for each conversation, in the same order."""
        raise ConfigError(f"{self.name} does not generate text.")

    def text_bits(self, text: str, *, window_tokens: int | None = None) -> TextBits:  # noqa: ARG002
        """Score a text: return the bits of every token, predicted from the tokens before it."""
        raise ConfigError(f"{self.name} does not score text.")

    def continuation_bits(self, prompt: str, continuation: str) -> tuple[float, int]:  # noqa: ARG002
        """Score a continuation: return its bits given a prompt, and its number of tokens."""
        raise ConfigError(f"{self.name} does not score text.")

    def embed(self, texts: Sequence[str]) -> list[list[float]]:  # noqa: ARG002
        """Return one vector for each text, all of equal length. Raises `SamplerError`."""
        raise ConfigError(f"{self.name} does not embed text.")


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSource(_Wire):
    """The model to load: a commit of a run, or a base model's initial weights."""

    type: Literal["load"] = "load"
    run_id: str | None = None
    step: int | None = None
    """Step of the commit, with `run_id`."""
    tokenizer: str | None = None
    """Tokenizer of a base model."""
    chat_template: str | None = None
    """Chat template of a base model; None: the tokenizer's own."""
    recipe: dict[str, Any] | None = None
    """Recipe of a base model, without `name` and `data`."""
    max_tokens: int | None = None
    """Length to which a base model's texts are truncated."""


class PromptInput(_Wire):
    """A prompt: text, tokens or a conversation."""

    text: str | None = None
    tokens: tuple[int, ...] | None = None
    messages: tuple[Message, ...] | None = None


class GenerateRequest(_Wire):
    """Generates `n` completions of each prompt; a prompt's choices are consecutive."""

    type: Literal["generate"] = "generate"
    prompts: tuple[PromptInput, ...]
    params: SamplingParams
    """Without a seed, the completions are not reproducible."""
    n: int = 1
    may_shorten: bool = False
    """Lower `max_tokens` to what the model's context leaves; else such a request is rejected."""
    top_logprobs: int | None = None
    """Number of alternatives for each token; None: no logprobs."""
    is_streamed: bool = False
    """Send chunks during sampling; else one for each choice."""


class ScoreRequest(_Wire):
    """Scores prompts: each token by a language model, the whole by a classifier or reward model."""

    type: Literal["score"] = "score"
    of: Literal["tokens", "text"] = "tokens"
    prompts: tuple[PromptInput, ...]
    top_logprobs: int = 0


class EmbedRequest(_Wire):
    """Computes embeddings of texts."""

    type: Literal["embed"] = "embed"
    prompts: tuple[PromptInput, ...]


class TokenizeRequest(_Wire):
    """Converts text to tokens, or tokens to text."""

    type: Literal["tokenize"] = "tokenize"
    text: str | None = None
    has_start: bool = False
    """Prepend the model's start token."""
    tokens: tuple[int, ...] | None = None


class TokenLogprob(_Wire):
    """A token with its logprob."""

    text: str
    text_bytes: tuple[int, ...] | None
    """Its bytes if it is part of a character; None if the tokenizer does not tell."""
    logprob: float | None
    """In nats, before temperature and truncation; None for the first token of a sequence."""
    top_logprobs: tuple["TokenLogprob", ...] = ()
    """The most probable tokens, in descending order."""
    is_end: bool = False
    """True for the end token, which is not part of the text."""


class Ready(_Wire):
    """The model is loaded."""

    type: Literal["ready"] = "ready"
    kind: ModelKind
    digest: str
    """Digest of its weights."""
    window_tokens: int
    """Longest sequence, completion included."""
    start_token: str | None = None
    end_token: str | None = None
    template: str | None = None
    """Jinja chat template."""
    classes: tuple[str, ...] = ()
    """Class names of a classifier; empty for a binary classifier or a number."""
    is_predicate: bool = False
    """True for a binary classifier."""
    resident_bytes: int = 0
    """Memory of its process."""


class PromptsRead(_Wire):
    """The prompts are tokenized."""

    type: Literal["read"] = "read"
    prompt_tokens: tuple[int, ...]


class CompletionChunk(_Wire):
    """More text of a choice."""

    type: Literal["piece"] = "piece"
    choice: int
    text: str
    tokens: tuple[TokenLogprob, ...] = ()
    """The tokens since the last chunk, if logprobs are requested."""
    num_tokens: int = 0
    """Tokens since the last chunk."""
    reason: Reason | None = None
    """Set in the last chunk."""


class Scored(_Wire):
    """Scores in the order of the prompts."""

    type: Literal["scored"] = "scored"
    prompts: tuple[tuple[TokenLogprob, ...], ...] = ()
    """Logprobs of each token, from a language model."""
    predictions: tuple[dict[str, Any], ...] = ()
    """Columns by name, as `assay eval predict` writes them, from a classifier or reward model."""
    num_tokens: int = 0
    num_cut: int = 0
    """Number of inputs that were truncated, as in training."""


class Embedded(_Wire):
    """Embeddings in the order of the texts."""

    type: Literal["embedded"] = "embedded"
    vectors: tuple[tuple[float, ...], ...]
    num_tokens: int
    num_cut: int = 0
    """Number of inputs that were truncated, as in training."""


class Tokenized(_Wire):
    """The converted text or tokens."""

    type: Literal["tokenized"] = "tokenized"
    text: str | None = None
    tokens: tuple[int, ...] | None = None


class RequestRejected(_Wire):
    """The request is invalid or failed."""

    type: Literal["rejected"] = "rejected"
    message: str
    code: str
    param: str | None = None
    is_ours: bool = False
    """True for an internal error."""


EngineRequest = ModelSource | GenerateRequest | ScoreRequest | EmbedRequest | TokenizeRequest
EngineResponse = Ready | PromptsRead | CompletionChunk | Scored | Embedded | Tokenized | RequestRejected

RequestLine = tuple[int, Annotated[EngineRequest, Field(discriminator="type")] | None]
"""A line to an engine: a number with its request; None cancels the request of that number."""
ResponseLine = tuple[int, Annotated[EngineResponse, Field(discriminator="type")] | None]
"""A line from an engine: the number of a request with a response; None: all responses were sent."""
REQUEST_LINE: TypeAdapter[RequestLine] = TypeAdapter(RequestLine)
RESPONSE_LINE: TypeAdapter[ResponseLine] = TypeAdapter(ResponseLine)


def check_prompt_budget(takes: int, params: SamplingParams, of: str = "") -> None:
    """Raise `ConfigError` if `max_tokens` leaves a model with a context of `takes` tokens none for the prompt.

    `of` prefixes the message, e.g. `judge: `.
    """
    if params.max_tokens >= takes:
        raise ConfigError(
            f"{of}a completion may have {params.max_tokens:,} tokens (sampling.max_tokens), but the model's "
            f"context of {takes:,} tokens must also hold the prompt. Set sampling.max_tokens to less."
        )
