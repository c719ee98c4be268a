"""Runs a grader on one sample, as benchmarks and rewards apply it, and says what came of it in the API's words.

A grader that failed gives no reward: null, and the error that says why. It is never a 0, which is what a bad
answer gets.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, get_args

from pydantic import TypeAdapter, ValidationError

from assay.base.errors import ConfigError
from assay.scoring.grade import Grade, GraderRunner, Tools, sample_values
from assay.scoring.graders import Grader, LabelModel, ScoreModel, check_sample_fields, single_graders
from assay.scoring.http_sampler import HttpSampler
from assay.scoring.item_failure import ItemFailureKind
from assay.scoring.sampler import Sampler
from assay.serving.refusal import RefusedError

AT_ONCE = 2
"""A grader may take two GB and two minutes of a processor: so many of them at a time."""
WAIT_S = 30.0
RETRY_AFTER_S = 5

ERROR_OF: dict[ItemFailureKind, str] = {
    "invalid_variable_error": "invalid_variable_error",
    "formula_parse_error": "formula_parse_error",
    "model_grader_server_error": "model_grader_server_error",
    "model_grader_refusal_error": "model_grader_refusal_error",
    "model_grader_parse_error": "model_grader_parse_error",
    "python_grader_server_error": "python_grader_server_error",
    "python_grader_runtime_error": "python_grader_runtime_error",
    "python_grader_killed": "python_grader_server_error",
    "python_timeout": "unresponsive_reward_error",
}
"""A failure's kind -> the API's error; any other is `other_error`."""
ERRORS = (
    "formula_parse_error", "invalid_variable_error", "model_grader_parse_error", "model_grader_refusal_error",
    "model_grader_server_error", "other_error", "python_grader_runtime_error", "python_grader_server_error",
    "sample_parse_error", "truncated_observation_error", "unresponsive_reward_error",
)  # fmt: skip
_GRADER: TypeAdapter[Grader] = TypeAdapter(Grader)


class SampleGrade(NamedTuple):
    """One sample's grade."""

    grader: Grader
    grade: Grade
    error: str | None
    """The API's word for what went wrong."""
    seconds: float


class GraderDesk:
    """Where graders run, few at a time."""

    def __init__(self, judge: str | None) -> None:
        """`judge`: the endpoint that model-graded graders ask; `ConfigError` where it is no URL."""
        if judge is not None:
            HttpSampler(base_url=judge, model="")
        self.judge = judge
        self._free = threading.BoundedSemaphore(AT_ONCE)

    def run(self, grader: Grader, model_sample: str, item: Mapping[str, Any]) -> SampleGrade:
        """Grade one sample."""
        with self._place(), self._runner(grader) as runner:
            began_s = time.monotonic()
            values = sample_values(model_sample, item)
            try:
                (grade,) = runner.grade([values])
            except ConfigError as error:
                raise RefusedError(str(error), param="grader", code="python_graders_unfenced") from error
        return SampleGrade(grader, grade, error_of(grade, values), time.monotonic() - began_s)

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._free.acquire(timeout=WAIT_S):
            raise RefusedError(
                f"{AT_ONCE} graders run already. Ask again later.",
                status=429,
                code="graders_busy",
                headers={"retry-after": str(RETRY_AFTER_S)},
            )
        try:
            yield
        finally:
            self._free.release()

    @contextmanager
    def _runner(self, grader: Grader) -> Iterator[GraderRunner]:
        asked = {each.model for each in single_graders(grader) if isinstance(each, ScoreModel | LabelModel)}
        judges: dict[str, Sampler] = {}
        if self.judge is not None:
            judges = {model: HttpSampler(base_url=self.judge, model=model, max_retries=1) for model in asked}
        try:
            runner = GraderRunner(grader, Tools(judges=judges))
        except ConfigError as error:
            cure = "Start 'assay serve' with --judge URL, or choose another grader."
            raise RefusedError(f"{error} {cure}", param="grader", code="grader_not_served") from error
        try:
            yield runner
        finally:
            runner.close()


def checked_grader(value: Any, where: str = "grader") -> Grader:
    """A grader, or a 400 that says what is wrong with it; `where` it stands in the request."""
    try:
        grader = _GRADER.validate_python(value)
        check_sample_fields(grader, where)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        kinds = {
            each
            for one in get_args(get_args(Grader)[0])
            for each in get_args(one.model_fields["type"].annotation)
        }
        names = [
            str(part) for part in first["loc"] if part not in kinds and not str(part).startswith("function-")
        ]
        param = ".".join([where, *names])
        message = first["msg"].removeprefix("Value error, ")
        raise RefusedError(
            f"Invalid value of '{param}': {message}.", param=param, code="invalid_grader"
        ) from None
    except ConfigError as error:
        raise RefusedError(str(error), param=where, code="invalid_grader") from None
    return grader


def error_of(grade: Grade, values: Mapping[str, Any]) -> str | None:
    """The API's word for what went wrong; None of a grade that is one."""
    if grade.failure is None:
        return None
    reads_json = "sample.output_json" in grade.failure.text
    if (
        grade.failure.kind == "invalid_variable_error"
        and reads_json
        and values["sample"].get("output_json") is None
    ):
        return "sample_parse_error"
    return ERROR_OF.get(grade.failure.kind, "other_error")
