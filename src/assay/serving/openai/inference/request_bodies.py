"""Bodies of chat, completions, embeddings and decisions, and their engine requests.

A parameter that would change the result and is not supported is a 400 that names it. Parameters without effect
(`user`, `metadata`) and default values are accepted.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationInfo, field_validator, model_validator

from assay.inference.protocol import DEFAULT_MAX_TOKENS, GenerateRequest, Message, PromptInput, SamplingParams
from assay.serving.api_error import ApiError
from assay.serving.openai.bodies import StrictBody, parsed

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_STOPS = 16
MAX_INPUTS = 2048
DEFAULT_COMPLETION_TOKENS = 16
"""Default `max_tokens` of completions, as in the hosted API."""

_IGNORED_PARAMS = (
    "user",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
)
_NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "store": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "web_search_options": (),
    "audio": (),
    "prediction": (),
    "moderation": (),
    "reasoning_effort": (),
    "verbosity": (),
    "suffix": ("",),
}
"""Unsupported parameter -> values that change nothing."""
_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Type of a message part -> key of its text."""


class _InferenceRequest(StrictBody):
    model: str


RequestT = TypeVar("RequestT", bound=_InferenceRequest)


class StreamOptions(StrictBody):
    """`stream_options`."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class _GenerationRequest(_InferenceRequest):
    """Common parameters of chat and completions."""

    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    @field_validator("stop")
    @classmethod
    def _stops_are_texts(cls, stop: str | list[str] | None) -> list[str]:
        found = [stop] if isinstance(stop, str) else stop or []
        if len(found) > MAX_STOPS or not all(found):
            raise ValueError(f"expected at most {MAX_STOPS} non-empty strings")
        return found

    @property
    def has_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def _generate_request(
        self, prompts: tuple[PromptInput, ...], *, max_tokens: int | None, top_logprobs: int | None
    ) -> GenerateRequest:
        params = SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=max_tokens or DEFAULT_MAX_TOKENS,
            seed=self.seed,
            stop=tuple(self.stop or ()),
        )
        return GenerateRequest(
            prompts=prompts,
            params=params,
            n=self.n,
            may_shorten=max_tokens is None,
            top_logprobs=top_logprobs,
            is_streamed=self.stream,
        )


class ChatMessage(StrictBody):
    """One message."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str
    type: Literal["message"] = "message"

    @model_validator(mode="before")
    @classmethod
    def _content_is_text(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        fields = {name: field for name, field in value.items() if field is not None or name == "content"}
        if fields.get("annotations") == []:
            del fields["annotations"]  # the SDK adds it when a response message is sent back
        if isinstance(fields.get("content"), list):
            fields["content"] = "".join(_part_text(part) for part in fields["content"])
        return fields


Messages = Annotated[list[ChatMessage], Field(min_length=1)]


class ChatRequest(_GenerationRequest):
    """`chat.completions.create`."""

    messages: Messages
    max_completion_tokens: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, value: int, info: ValidationInfo) -> int:
        if not info.data.get("logprobs"):
            raise ValueError("it requires logprobs: true")
        return value

    @field_validator("max_tokens")
    @classmethod
    def _is_set_once(cls, value: int, info: ValidationInfo) -> int:
        if info.data.get("max_completion_tokens") is not None:
            raise ValueError("max_completion_tokens is also set; send one of them")
        return value

    def engine_request(self) -> GenerateRequest:
        return self._generate_request(
            (prompt_of_messages(self.messages),),
            max_tokens=self.max_completion_tokens or self.max_tokens,
            top_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )


class CompletionRequest(_GenerationRequest):
    """`completions.create`."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int = Field(default=DEFAULT_COMPLETION_TOKENS, ge=0)
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool = False
    best_of: int | None = None

    @field_validator("best_of")
    @classmethod
    def _equals_n(cls, value: int, info: ValidationInfo) -> int:
        if value != info.data.get("n"):
            raise ValueError("it must equal n, because all completions are returned")
        return value

    @property
    def prompts(self) -> tuple[PromptInput, ...]:
        return prompts_of(self.prompt, "prompt")

    def engine_request(self) -> GenerateRequest:
        """Requires `max_tokens` above 0."""
        return self._generate_request(self.prompts, max_tokens=self.max_tokens, top_logprobs=self.logprobs)


class EmbeddingRequest(_InferenceRequest):
    """`embeddings.create`."""

    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class Choice(StrictBody):
    """A choice of a decision."""

    value: str | bool


class DecisionQuestion(StrictBody):
    """A question of a decision."""

    type: Literal["predicate", "choice", "score"]
    instructions: Literal[""]
    name: str | None = None
    choices: list[Choice] | None = None
    levels: list[Any] | None = Field(default=None, max_length=0)

    @field_validator("instructions", mode="before")
    @classmethod
    def _are_not_read(cls, instructions: Any) -> Any:
        if instructions:
            raise ValueError(
                "instructions are not supported, because the model answers the question it was trained on. Send ''"
                "answer. Give ''"
            )
        return instructions


class DecisionRequest(_InferenceRequest):
    """`decisions.create`."""

    input: str | Messages
    questions: list[DecisionQuestion] = Field(min_length=1, max_length=400)

    @property
    def prompt(self) -> PromptInput:
        return PromptInput(text=self.input) if isinstance(self.input, str) else prompt_of_messages(self.input)


def parse_request(kind: type[RequestT], value: Any) -> RequestT:
    """Parse a body. Raises `ApiError` that names the first unsupported or invalid parameter."""
    if not isinstance(value, dict):
        return parsed(kind, value)
    required = [name for name, field in kind.model_fields.items() if field.is_required()]
    fields = {
        name: field_value
        for name, field_value in value.items()
        if (field_value is not None or name in required) and name not in _IGNORED_PARAMS
    }
    for name, harmless in _NEUTRAL_VALUES.items():
        if name in fields and name not in kind.model_fields:
            if fields[name] not in harmless:
                raise ApiError(
                    f"'{name}' is not supported. Unsupported parameters are rejected, not ignored; remove it.",
                    param=name,
                    code="parameter_not_honoured",
                )
            del fields[name]
    return parsed(kind, fields)


def prompt_of_messages(messages: list[ChatMessage]) -> PromptInput:
    """Return a conversation as a prompt."""
    return PromptInput(messages=tuple(Message(role=message.role, content=message.content) for message in messages))


def prompts_of(value: str | list[str] | list[int] | list[list[int]], param: str) -> tuple[PromptInput, ...]:
    """Return one or several texts or token lists as prompts."""
    if isinstance(value, str):
        return (PromptInput(text=value),)
    found: list[Any] = list(value)
    is_one = bool(found) and isinstance(found[0], int)
    if not found or (len(found) > MAX_INPUTS and not is_one):
        raise ApiError(
            f"'{param}' must be a string or a token list, or 1 to {MAX_INPUTS:,} of them.",
            param=param,
            code="invalid_value",
        )
    if is_one:
        return (PromptInput(tokens=tuple(found)),)
    return tuple(
        PromptInput(text=prompt) if isinstance(prompt, str) else PromptInput(tokens=tuple(prompt)) for prompt in found
    )


def _part_text(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, str):
        return part
    if kind not in _PARTS or not isinstance(text := part.get(_PARTS[kind]), str):
        raise ValueError(f"only text parts are supported, not {kind!r:.40}")
    return text
