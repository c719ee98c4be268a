"""Why an item has no score: of which kind, so that failures can be counted, and in words.

The machinery failed, not the model: an endpoint was silent, a grader broke. Kinds of graders' failures are the
API's names for its errors.
"""

from typing import Literal, NamedTuple

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
"""`sampler_...`: the model under test gave no completion. `model_grader_...`: a judge gave no mark.
`python_grader_killed`: its process was killed from outside, and so were those that graded the sample again.
`reward_not_finite`: a reward model said no number. `sample_error`, `unscored`, `not_run`: another tool's item
that failed there, has no number, or is missing in a log that was cut short."""


class ItemFailure(NamedTuple):
    """What stands in the place of a score."""

    kind: ItemFailureKind
    text: str
    """For a person: `the endpoint did not answer in 60 s`."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"
