"""Grades of samples, and the failures of items that have no score: a kind, which can be counted, and a text.

An endpoint or grader failed, not the model. Kinds of grader failures are the API's error names.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, cast

from assay.inference.protocol import SamplerError

ItemFailureKind = Literal[
    "sampler_timeout",
    "sampler_server",
    "sampler_request",
    "sampler_refusal",
    "invalid_variable_error",
    "model_grader_server_error",
    "model_grader_refusal_error",
    "model_grader_parse_error",
    "python_grader_server_error",
    "python_grader_runtime_error",
    "python_grader_killed",
    "python_timeout",
    "formula_parse_error",
    "reward_not_finite",
    "sample_error",
    "unscored",
    "not_run",
]
"""`sampler_...`: the model under test returned no completion. `model_grader_...`: a judge returned no score.
`python_grader_killed`: the process was killed from outside, in all attempts. `reward_not_finite`: a reward model
returned no finite number. `sample_error`, `unscored`, `not_run`: in an imported log, the item failed, has no score,
or is missing because the log was truncated."""


class ItemFailure(NamedTuple):
    """The failure of one item."""

    kind: ItemFailureKind
    text: str
    """Readable description, e.g. `the endpoint did not answer in 60 s`."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Grade(NamedTuple):
    """The score of one sample, or the failure."""

    score: float | None
    """None if the grader failed."""
    failure: ItemFailure | None = None
    parts: Mapping[str, float] = {}
    """Scores of the graders of a multi grader."""
    label: str | None = None
    """The label chosen by a label model."""


def sampler_failure(error: SamplerError) -> ItemFailure:
    """Return the failure of an item whose model under test returned no completion."""
    return ItemFailure(cast(ItemFailureKind, f"sampler_{error.kind}"), str(error))
