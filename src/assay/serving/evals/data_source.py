"""Data source of an eval run: rows with samples, or rows for which a model generates samples."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from assay.inference.protocol import DEFAULT_MAX_TOKENS, SamplingParams
from assay.scoring.graders import GraderMessage
from assay.scoring.template import fields_read, item_path

DEFAULT_SEED = 42
"""Fixed, so that repeated runs give the same samples."""
MAX_SEED = 2**63 - 1


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class InlineRow(_Part):
    """One row of a request."""

    item: dict[str, Any]
    sample: dict[str, Any] | None = None


class FileContent(_Part):
    """Rows in the request."""

    type: Literal["file_content"]
    content: list[InlineRow] = Field(min_length=1)


class FileId(_Part):
    """Rows of a file, one JSON object per line."""

    type: Literal["file_id"]
    id: str


RowSource = Annotated[FileContent | FileId, Field(discriminator="type")]


class TemplateMessages(_Part):
    """Messages with placeholders for fields of the item."""

    type: Literal["template"]
    template: list[GraderMessage] = Field(min_length=1)

    @field_validator("template")
    @classmethod
    def _reads_items_only(cls, template: list[GraderMessage]) -> list[GraderMessage]:
        for turn in template:
            if read := sorted(fields_read(turn.template(), "sample")):
                raise ValueError(f"prompts cannot read sample.{read[0]}, because samples are generated from them")
        return template


class ItemMessages(_Part):
    """Messages that are a field of the item."""

    type: Literal["item_reference"]
    item_reference: str

    @field_validator("item_reference")
    @classmethod
    def _names_a_field(cls, path: str) -> str:
        item_path(path)
        return path


class EvalSamplingParams(_Part):
    """Sampling parameters. Unsupported parameters are accepted only with their default value."""

    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)

    def params(self) -> SamplingParams:
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=self.top_p or 1.0,
            max_tokens=self.max_completion_tokens or DEFAULT_MAX_TOKENS,
            seed=DEFAULT_SEED if self.seed is None else self.seed,
        )

    @model_validator(mode="before")
    @classmethod
    def _without_what_changes_nothing(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        harmless = {"tools": [], "response_format": {"type": "text"}}
        return {
            name: param
            for name, param in value.items()
            if param is not None and not (name in harmless and param == harmless[name])
        }


class JsonlSource(_Part):
    """Rows without generation."""

    type: Literal["jsonl"]
    source: RowSource


class CompletionsSource(_Part):
    """Rows for which a model generates samples."""

    type: Literal["completions"]
    source: RowSource
    model: str
    input_messages: Annotated[TemplateMessages | ItemMessages, Field(discriminator="type")]
    sampling_params: EvalSamplingParams = EvalSamplingParams()


EvalSource = Annotated[JsonlSource | CompletionsSource, Field(discriminator="type")]
