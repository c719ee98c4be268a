"""What is asked of models: bodies of chat, completions, embeddings and decisions, each as an engine is asked.

A parameter that changes the answer and is not honoured is a 400 that names it. One that changes nothing
(`user`, `metadata`) may be given, and so may any other with the value that it has where nobody gives it.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from assay.inference.protocol import GenerateRequest, PromptInput
from assay.serving.openai.bodies import parsed
from assay.serving.refusal import RefusedError

MAX_CHOICES = 128
MAX_LIKELIEST = 20
MAX_STOPS = 16
MAX_INPUTS = 2048
DEFAULT_COMPLETION_TOKENS = 16
"""Where `completions` say nothing, as the hosted API has it."""

_CHANGES_NOTHING = (
    "user",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
)
_AS_IF_NOT_GIVEN: Mapping[str, tuple[Any, ...]] = {
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
"""Parameter -> the values that ask for what is done anyway."""
_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Type of a part of a message -> where its text stands."""


class _Question(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    model: str


QuestionT = TypeVar("QuestionT", bound=_Question)


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class _Drawn(_Question):
    """What chat and completions have in common."""

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
            raise ValueError(f"at most {MAX_STOPS} texts, none of them empty")
        return found

    @property
    def has_usage(self) -> bool:
        """Whether a stream ends with what was used."""
        return self.stream_options is not None and self.stream_options.include_usage

    def _ask(self, prompts: tuple[PromptInput, ...], **more: Any) -> GenerateRequest:
        return GenerateRequest(
            prompts=prompts,
            n=self.n,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            stop=tuple(self.stop or ()),
            is_streamed=self.stream,
            **more,
        )


class ChatMessage(BaseModel):
    """One turn."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: str
    type: Literal["message"] = "message"

    @model_validator(mode="before")
    @classmethod
    def _content_is_text(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = {name: each for name, each in value.items() if each is not None or name == "content"}
        if given.get("annotations") == []:
            del given["annotations"]  # as the SDK hands an answer back
        if isinstance(given.get("content"), list):
            given["content"] = "".join(_part_text(part) for part in given["content"])
        return given


Messages = Annotated[list[ChatMessage], Field(min_length=1)]


class ChatQuestion(_Drawn):
    """`chat.completions.create`."""

    messages: Messages
    max_completion_tokens: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LIKELIEST)

    @field_validator("top_logprobs")
    @classmethod
    def _stands_beside_logprobs(cls, value: int, info: ValidationInfo) -> int:
        if not info.data.get("logprobs"):
            raise ValueError("it needs logprobs: true")
        return value

    @field_validator("max_tokens")
    @classmethod
    def _is_given_once(cls, value: int, info: ValidationInfo) -> int:
        if info.data.get("max_completion_tokens") is not None:
            raise ValueError("max_completion_tokens is the same, and given, too")
        return value

    def ask(self) -> GenerateRequest:
        """As an engine is asked."""
        return self._ask(
            (prompt_of_messages(self.messages),),
            max_tokens=self.max_completion_tokens or self.max_tokens,
            top_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )


class CompletionQuestion(_Drawn):
    """`completions.create`."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int = Field(default=DEFAULT_COMPLETION_TOKENS, ge=0)
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LIKELIEST)
    echo: bool = False
    best_of: int | None = None

    @field_validator("best_of")
    @classmethod
    def _all_are_answered(cls, value: int, info: ValidationInfo) -> int:
        if value != info.data.get("n"):
            raise ValueError("it is honoured only where it is n: all that is drawn is answered")
        return value

    @property
    def prompts(self) -> tuple[PromptInput, ...]:
        """Each of them."""
        return prompts_of(self.prompt, "prompt")

    def ask(self) -> GenerateRequest:
        """As an engine is asked; of a question that asks for a token at least."""
        return self._ask(self.prompts, max_tokens=self.max_tokens, top_logprobs=self.logprobs)


class EmbeddingQuestion(_Question):
    """`embeddings.create`."""

    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class Choice(BaseModel):
    """One of a decision's choices."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    value: str | bool


class DecisionPart(BaseModel):
    """One question of a decision."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
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
                "a trained classifier or reward model reads no instructions: it answers what it was trained to "
                "answer. Give ''"
            )
        return instructions


class DecisionQuestion(_Question):
    """`decisions.create`."""

    input: str | Messages
    questions: list[DecisionPart] = Field(min_length=1, max_length=400)

    @property
    def prompt(self) -> PromptInput:
        """What is decided about."""
        return PromptInput(text=self.input) if isinstance(self.input, str) else prompt_of_messages(self.input)


def read_question(kind: type[QuestionT], value: Any) -> QuestionT:
    """A body as a question; `RefusedError` names the first parameter that is not honoured, or wrong."""
    if not isinstance(value, dict):
        return parsed(kind, value)
    required = [name for name, field in kind.model_fields.items() if field.is_required()]
    given = {
        name: each
        for name, each in value.items()
        if (each is not None or name in required) and name not in _CHANGES_NOTHING
    }
    for name, harmless in _AS_IF_NOT_GIVEN.items():
        if name in given and name not in kind.model_fields:
            if given[name] not in harmless:
                raise RefusedError(
                    f"'{name}' is not honoured here, so it is refused rather than ignored. Leave it out.",
                    param=name,
                    code="parameter_not_honoured",
                )
            del given[name]
    return parsed(kind, given)


def prompt_of_messages(messages: list[ChatMessage]) -> PromptInput:
    """A conversation."""
    return PromptInput(
        messages=tuple({"role": message.role, "content": message.content} for message in messages)
    )


def prompts_of(given: str | list[str] | list[int] | list[list[int]], param: str) -> tuple[PromptInput, ...]:
    """Texts or tokens, one or several."""
    if isinstance(given, str):
        return (PromptInput(text=given),)
    found: list[Any] = list(given)
    is_one = bool(found) and isinstance(found[0], int)
    if not found or (len(found) > MAX_INPUTS and not is_one):
        raise RefusedError(
            f"'{param}' is a text or tokens, or 1 to {MAX_INPUTS:,} of them.", param=param, code="invalid_value"
        )
    if is_one:
        return (PromptInput(tokens=tuple(found)),)
    return tuple(
        PromptInput(text=each) if isinstance(each, str) else PromptInput(tokens=tuple(each)) for each in found
    )


def _part_text(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, str):
        return part
    if kind not in _PARTS or not isinstance(text := part.get(_PARTS[kind]), str):
        raise ValueError(f"only text is read, and {kind!r:.40} is none: nothing is fetched or looked at")
    return text
