"""The engine's protocol: requests and responses, as values that travel as lines of JSON.

    load    -> ready                          first of all, once
    generate-> read   piece ...  done         chunks of all choices, in the order of sampling
    score   -> scored            done         logprob of each prompt token given those before it
    embed   -> embedded          done         a vector for each text
    classify-> classified        done         predictions of a classifier or reward model
    tokenize-> tokenized         done         text to tokens, or tokens to text
    any     -> rejected                       what is wrong, and with which parameter

A request can be cancelled; then no response follows. All engines use this protocol: ours and others', in this process
or on another machine.
"""

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

ModelKind = Literal["language_model", "classifier", "reward_model", "encoder"]
Reason = Literal["stop", "length"]


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
    messages: tuple[dict[str, str], ...] | None = None


class GenerateRequest(_Wire):
    """Generates `n` completions of each prompt; a prompt's choices are consecutive."""

    type: Literal["generate"] = "generate"
    prompts: tuple[PromptInput, ...]
    n: int = 1
    max_tokens: int | None = None
    """None: up to the model's context length."""
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    """None: not reproducible."""
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    """Number of alternatives for each token; None: no logprobs."""
    is_streamed: bool = False
    """Send chunks during sampling; else one for each choice."""


class ScoreRequest(_Wire):
    """Scores each token of prompts."""

    type: Literal["score"] = "score"
    prompts: tuple[PromptInput, ...]
    top_logprobs: int = 0


class EmbedRequest(_Wire):
    """Computes embeddings of texts."""

    type: Literal["embed"] = "embed"
    prompts: tuple[PromptInput, ...]


class ClassifyRequest(_Wire):
    """Predicts with a classifier or reward model."""

    type: Literal["classify"] = "classify"
    prompts: tuple[PromptInput, ...]


class TokenizeRequest(_Wire):
    """Converts text to tokens, or tokens to text."""

    type: Literal["tokenize"] = "tokenize"
    text: str | None = None
    has_start: bool = False
    """Prepend the model's start token."""
    tokens: tuple[int, ...] | None = None


class TopLogprob(_Wire):
    """An alternative token with its logprob."""

    text: str
    text_bytes: tuple[int, ...] | None
    logprob: float


class TokenLogprob(_Wire):
    """A token with its logprob."""

    text: str
    text_bytes: tuple[int, ...] | None
    """Its bytes if it is part of a character; None if the tokenizer does not tell."""
    logprob: float | None
    """In nats; None for the first token of a sequence."""
    top_logprobs: tuple[TopLogprob, ...] = ()
    """In descending order."""
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
    num_tokens: int = 0
    """Tokens since the last chunk."""
    reason: Reason | None = None
    """Set in the last chunk."""


class Scored(_Wire):
    """Scores of each prompt's tokens."""

    type: Literal["scored"] = "scored"
    prompts: tuple[tuple[TokenLogprob, ...], ...]


class Embedded(_Wire):
    """Embeddings in the order of the texts."""

    type: Literal["embedded"] = "embedded"
    vectors: tuple[tuple[float, ...], ...]
    num_tokens: int
    num_cut: int = 0
    """Number of inputs that were truncated, as in training."""


class Classified(_Wire):
    """Predictions in the order of the texts: columns by name, as `assay predict` writes them."""

    type: Literal["classified"] = "classified"
    predictions: tuple[dict[str, Any], ...]
    num_tokens: int
    num_cut: int = 0


class Tokenized(_Wire):
    """The converted text or tokens."""

    type: Literal["tokenized"] = "tokenized"
    text: str | None = None
    tokens: tuple[int, ...] | None = None


class Done(_Wire):
    """All responses of the request were sent."""

    type: Literal["done"] = "done"


class RequestRejected(_Wire):
    """The request is invalid or failed."""

    type: Literal["rejected"] = "rejected"
    message: str
    code: str
    param: str | None = None
    is_ours: bool = False
    """True for an internal error."""


EngineRequest = ModelSource | GenerateRequest | ScoreRequest | EmbedRequest | ClassifyRequest | TokenizeRequest
EngineResponse = (
    Ready | PromptsRead | CompletionChunk | Scored | Embedded | Classified | Tokenized | Done | RequestRejected
)


class RequestLine(_Wire):
    """A line to an engine: a request, or the cancellation of an earlier one."""

    number: int
    request: Annotated[EngineRequest, Field(discriminator="type")] | None = None
    """None cancels the request."""


class ResponseLine(_Wire):
    """A line from an engine."""

    number: int
    response: Annotated[EngineResponse, Field(discriminator="type")]


REQUEST_LINE: TypeAdapter[RequestLine] = TypeAdapter(RequestLine)
RESPONSE_LINE: TypeAdapter[ResponseLine] = TypeAdapter(ResponseLine)


class Engine(Protocol):
    """A loaded model."""

    @property
    def ready(self) -> Ready: ...

    def stream(self, request: EngineRequest) -> AsyncGenerator[EngineResponse, None]:
        """Yield the responses without `done`; closing the iterator cancels the request.

        Raises `ApiError` if the request is rejected or the process died.
        """
        ...
