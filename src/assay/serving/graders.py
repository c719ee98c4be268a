"""Runs a grader on one sample and reports the result in the API's terms.

A failed grader gives a null reward with an error. It never gives 0, which is the reward of a bad sample.
"""

import asyncio
import math
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, get_args

import anyio
from pydantic import TypeAdapter, ValidationError

from assay.base.errors import ConfigError
from assay.inference.endpoint import HttpEngine
from assay.inference.protocol import Engine
from assay.scoring.grade import Grade, ItemFailureKind
from assay.scoring.grader_runner import GraderRunner, Tools, sample_values
from assay.scoring.graders import (
    Grader,
    LabelModel,
    MathAnswer,
    PythonGrader,
    ScoreModel,
    check_sample_fields,
    single_graders,
)
from assay.scoring.python_process import Limits
from assay.serving.api_error import ApiError
from assay.serving.slots import FairSlots

PROCESS_SLOTS = (6, 2)
"""Concurrent runs in total and per project. A python grader may use 2 GB and two minutes of CPU time."""
JUDGE_SLOTS = (24, 8)
"""Each waits for the judge in a thread."""
IN_PROCESS_SLOTS = (2, 1)
"""They take milliseconds, but a long comparison holds the GIL."""
COMPARED_PAIRS = 2.0**32
"""Pairs of characters: a quarter of a second."""
MAX_WAITING = 64
WAIT_S = 30.0

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
"""Failure kind -> API error; others are `other_error`."""
ERRORS = (
    "formula_parse_error", "invalid_variable_error", "model_grader_parse_error", "model_grader_refusal_error",
    "model_grader_server_error", "other_error", "python_grader_runtime_error", "python_grader_server_error",
    "sample_parse_error", "truncated_observation_error", "unresponsive_reward_error",
)  # fmt: skip
_GRADER: TypeAdapter[Grader] = TypeAdapter(Grader)


class SampleGrade(NamedTuple):
    """Grade of one sample."""

    grader: Grader
    grade: Grade
    error: str | None
    """The API's error name."""
    seconds: float


class GraderService:
    """Runs graders with limited concurrency, shared fairly between projects."""

    def __init__(self, judge: str | None) -> None:
        """`judge`: URL of the endpoint for model graders. Raises `ConfigError` if it is not a URL."""
        if judge is not None:
            HttpEngine(base_url=judge, model="")
        self.judge = judge
        self._process_slots = _slots(PROCESS_SLOTS, "python graders")
        self._judge_slots = _slots(JUDGE_SLOTS, "model-graded graders")
        self._in_process_slots = _slots(IN_PROCESS_SLOTS, "graders")
        # A limiter of its own, so that waiting graders do not take threads from other routes.
        self._threads = anyio.CapacityLimiter(math.inf)

    async def check(self, project: str, value: Any) -> Grader:
        """Parse a grader in a thread, since a long python source takes a while. See `parse_grader`."""
        async with self._in_process_slots.slot(project):
            return await anyio.to_thread.run_sync(parse_grader, value, limiter=self._threads)

    async def run(self, project: str, grader: Grader, model_sample: str, item: Mapping[str, Any]) -> SampleGrade:
        """Grade one sample. On cancellation, stop the grading process before releasing the slot."""
        abandoned = threading.Event()
        async with self._slots_of(grader).slot(project):
            run = partial(self._run, grader, model_sample, item, abandoned)
            grading = asyncio.ensure_future(anyio.to_thread.run_sync(run, limiter=self._threads))
            try:
                return await asyncio.shield(grading)
            finally:
                abandoned.set()
                await asyncio.gather(grading, return_exceptions=True)

    def _slots_of(self, grader: Grader) -> FairSlots:
        kinds = [type(single_grader) for single_grader in single_graders(grader)]
        if PythonGrader in kinds or MathAnswer in kinds:
            return self._process_slots
        return self._judge_slots if ScoreModel in kinds or LabelModel in kinds else self._in_process_slots

    def _run(
        self, grader: Grader, model_sample: str, item: Mapping[str, Any], abandoned: threading.Event
    ) -> SampleGrade:
        limits = Limits(compared_pairs=COMPARED_PAIRS, abandoned=abandoned)
        with closing(self._runner(grader, limits)) as runner:
            began_s = time.monotonic()
            values = sample_values(model_sample, item)
            try:
                (grade,) = runner.grade([values])
            except ConfigError as error:
                raise ApiError(str(error), param="grader", code="python_graders_unfenced") from error
        return SampleGrade(grader, grade, error_of(grade, values), time.monotonic() - began_s)

    def _runner(self, grader: Grader, limits: Limits) -> GraderRunner:
        models = {
            single_grader.model
            for single_grader in single_graders(grader)
            if isinstance(single_grader, ScoreModel | LabelModel)
        }
        judges: dict[str, Engine] = {}
        if self.judge is not None:
            judges = {model: HttpEngine(base_url=self.judge, model=model, max_retries=1) for model in models}
        try:
            return GraderRunner(grader, Tools(judges=judges, limits=limits))
        except ConfigError as error:
            hint = "Start 'assay serve' with --judge URL, or use another grader."
            raise ApiError(f"{error} {hint}", param="grader", code="grader_not_served") from error


def _slots(at_once: tuple[int, int], title: str) -> FairSlots:
    return FairSlots(*at_once, title=title, code="graders_busy", max_waiting=MAX_WAITING, wait_s=WAIT_S)


def parse_grader(value: Any, where: str = "grader") -> Grader:
    """Parse a grader. Raises `ApiError`; `where`: its location in the request."""
    try:
        grader = _GRADER.validate_python(value)
        check_sample_fields(grader, where)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        kinds = {arg for one in get_args(get_args(Grader)[0]) for arg in get_args(one.model_fields["type"].annotation)}
        names = [str(part) for part in first["loc"] if part not in kinds and not str(part).startswith("function-")]
        param = ".".join([where, *names])
        message = first["msg"].removeprefix("Value error, ").removesuffix(".")
        raise ApiError(f"Invalid value of '{param}': {message}.", param=param, code="invalid_grader") from None
    except ConfigError as error:
        raise ApiError(str(error), param=where, code="invalid_grader") from None
    return grader


def error_of(grade: Grade, values: Mapping[str, Any]) -> str | None:
    """Return the API's error name; None for a successful grade."""
    if grade.failure is None:
        return None
    reads_json = "sample.output_json" in grade.failure.text
    if grade.failure.kind == "invalid_variable_error" and reads_json and values["sample"].get("output_json") is None:
        return "sample_parse_error"
    return ERROR_OF.get(grade.failure.kind, "other_error")
