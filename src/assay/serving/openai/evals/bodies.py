"""Request bodies of evals."""

from typing import Annotated, Any, Literal

from pydantic import Field

from assay.serving.evals.data_source import EvalSource
from assay.serving.openai.bodies import Metadata, StrictBody

MAX_CRITERIA = 32
_Title = Annotated[str, Field(min_length=1, max_length=255)]
_Tags = Annotated[Metadata, Field(max_length=16)]


class CustomConfigBody(StrictBody):
    """`data_source_config`: the item schema."""

    type: Literal["custom"]
    item_schema: dict[str, Any]
    include_sample_schema: bool = False


class NewEvalBody(StrictBody):
    """`evals.create`."""

    data_source_config: CustomConfigBody
    testing_criteria: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_CRITERIA)
    name: _Title = "eval"
    metadata: _Tags | None = None


class ChangedEvalBody(StrictBody):
    """`evals.update`."""

    name: _Title | None = None
    metadata: _Tags | None = None


class EvalRunBody(StrictBody):
    """`evals.runs.create`."""

    data_source: EvalSource
    name: _Title = "run"
    metadata: _Tags | None = None
