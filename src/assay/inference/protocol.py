"""What is asked of a model, and what it says: the engine's protocol, as values that travel as lines of JSON.

    load    -> ready                          once, before all else
    generate-> read   piece ...  done         pieces in the order in which they are drawn, of all choices
    score   -> scored            done         how likely each token of a prompt was, given those before it
    embed   -> embedded          done         a vector for each text
    classify-> classified        done         what a classifier or reward model answers
    spell   -> spelled           done         text to tokens, or tokens to text
    any     -> refused                        it cannot be asked so: what is wrong, and of which parameter

An ask that is given up is told (`abort`), and nothing more comes of it. Whoever answers, here or on another
machine, in our engine or in another's, says these.
"""

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

ModelKind = Literal["language_model", "classifier", "reward_model", "encoder"]
Reason = Literal["stop", "length"]


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSource(_Wire):
    """Which weights: a commit of a run, or those that a base model's recipe begins with."""

    type: Literal["load"] = "load"
    run_id: str | None = None
    step: int | None = None
    """With `run_id`."""
    tokenizer: str | None = None
    """A base model's,"""
    chat_template: str | None = None
    """what renders its messages where the tokenizer's own does not, with"""
    recipe: dict[str, Any] | None = None
    """its recipe, without `name` and `data`; and"""
    max_tokens: int | None = None
    """where its texts are cut."""


class PromptInput(_Wire):
    """One of text, tokens or a conversation."""

    text: str | None = None
    tokens: tuple[int, ...] | None = None
    messages: tuple[dict[str, str], ...] | None = None


class GenerateRequest(_Wire):
    """Complete prompts, each `n` times; a prompt's choices stand together."""

    type: Literal["generate"] = "generate"
    prompts: tuple[PromptInput, ...]
    n: int = 1
    max_tokens: int | None = None
    """None: as many as the model has room for."""
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    """None: nobody will repeat it."""
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    """Log-probabilities of what is drawn, and so many tokens beside each; None for neither."""
    is_streamed: bool = False
    """Pieces while they are drawn; else one for each choice."""


class ScoreRequest(_Wire):
    """How likely prompts are, token by token."""

    type: Literal["score"] = "score"
    prompts: tuple[PromptInput, ...]
    top_logprobs: int = 0


class EmbedRequest(_Wire):
    """Vectors of texts."""

    type: Literal["embed"] = "embed"
    prompts: tuple[PromptInput, ...]


class ClassifyRequest(_Wire):
    """What a classifier or a reward model answers for each."""

    type: Literal["classify"] = "classify"
    prompts: tuple[PromptInput, ...]


class TokenizeRequest(_Wire):
    """Either to tokens, or back."""

    type: Literal["spell"] = "spell"
    text: str | None = None
    has_start: bool = False
    """Whether the model's start token stands before the text's."""
    tokens: tuple[int, ...] | None = None


class TopLogprob(_Wire):
    """A token that might have stood there."""

    text: str
    text_bytes: tuple[int, ...] | None
    logprob: float


class TokenLogprob(_Wire):
    """A token that stands there."""

    text: str
    text_bytes: tuple[int, ...] | None
    """Where it is part of a character, and the tokenizer tells."""
    logprob: float | None
    """In nats; None for the first of a sequence, which nothing stands before."""
    top_logprobs: tuple[TopLogprob, ...] = ()
    """The likeliest first."""
    is_end: bool = False
    """The token that ended a completion, and is no part of its text."""


class Ready(_Wire):
    """The model is there."""

    type: Literal["ready"] = "ready"
    kind: ModelKind
    digest: str
    """That of its weights."""
    window_tokens: int
    """Longest sequence, completion included."""
    start_token: str | None = None
    end_token: str | None = None
    template: str | None = None
    """Jinja of its conversations."""
    classes: tuple[str, ...] = ()
    """Names of a classifier's classes; none where it says how likely one thing is, or a number."""
    is_predicate: bool = False
    """A classifier that says how likely one thing is."""
    resident_bytes: int = 0
    """Memory of its process."""


class PromptsRead(_Wire):
    """The prompts are read."""

    type: Literal["read"] = "read"
    prompt_tokens: tuple[int, ...]


class CompletionChunk(_Wire):
    """More of a choice."""

    type: Literal["piece"] = "piece"
    choice: int
    text: str
    tokens: tuple[TokenLogprob, ...] = ()
    num_tokens: int = 0
    """Drawn since the last piece."""
    reason: Reason | None = None
    """Why it is the last one; None while it is not."""


class Scored(_Wire):
    """Token by token."""

    type: Literal["scored"] = "scored"
    prompts: tuple[tuple[TokenLogprob, ...], ...]


class Embedded(_Wire):
    """In the order of the texts."""

    type: Literal["embedded"] = "embedded"
    vectors: tuple[tuple[float, ...], ...]
    num_tokens: int
    num_cut: int = 0
    """Inputs that were cut to what the model takes, as in training."""


class Classified(_Wire):
    """In the order of the texts: columns by name, as `assay predict` has them."""

    type: Literal["classified"] = "classified"
    predictions: tuple[dict[str, Any], ...]
    num_tokens: int
    num_cut: int = 0
    """See `Embedded`."""


class Tokenized(_Wire):
    """The other form."""

    type: Literal["spelled"] = "spelled"
    text: str | None = None
    tokens: tuple[int, ...] | None = None


class Done(_Wire):
    """All was said."""

    type: Literal["done"] = "done"


class RequestRejected(_Wire):
    """It cannot be asked so."""

    type: Literal["refused"] = "refused"
    message: str
    code: str
    param: str | None = None
    is_ours: bool = False
    """A mistake of the engine's."""


EngineRequest = ModelSource | GenerateRequest | ScoreRequest | EmbedRequest | ClassifyRequest | TokenizeRequest
EngineResponse = (
    Ready | PromptsRead | CompletionChunk | Scored | Embedded | Classified | Tokenized | Done | RequestRejected
)


class RequestLine(_Wire):
    """To an engine: an ask, or that an earlier one is given up."""

    number: int
    request: Annotated[EngineRequest, Field(discriminator="type")] | None = None
    """None: it is given up."""


class ResponseLine(_Wire):
    """From an engine."""

    number: int
    response: Annotated[EngineResponse, Field(discriminator="type")]


REQUEST_LINE: TypeAdapter[RequestLine] = TypeAdapter(RequestLine)
RESPONSE_LINE: TypeAdapter[ResponseLine] = TypeAdapter(ResponseLine)


class Engine(Protocol):
    """A model that answers."""

    @property
    def ready(self) -> Ready:
        """What it is."""
        ...

    def stream(self, request: EngineRequest) -> AsyncGenerator[EngineResponse, None]:
        """What it says, without `done`; closing the iterator gives the ask up.

        `RefusedError` where it cannot be asked so, or where its process died.
        """
        ...
