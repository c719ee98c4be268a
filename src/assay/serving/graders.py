"""Runs a grader on one sample, as benchmarks and rewards apply it, and says what came of it in the API's words.

A grader that failed gives no reward: null, and the error that says why. It is never a 0, which is what a bad
answer gets.
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
from assay.scoring.grade import Grade, GraderRunner, Tools, sample_values
from assay.scoring.graders import (
    Grader,
    LabelModel,
    MathAnswer,
    PythonGrader,
    ScoreModel,
    check_sample_fields,
    single_graders,
)
from assay.scoring.http_sampler import HttpSampler
from assay.scoring.item_failure import ItemFailureKind
from assay.scoring.python_process import Limits
from assay.scoring.sampler import Sampler
from assay.serving.refusal import RefusedError
from assay.serving.slots import FairSlots

PROCESSES = (6, 2)
"""At a time, in all and of a project. A python grader may take two GB and two minutes of a processor."""
JUDGED = (24, 8)
"""They wait for the judge, each in a thread."""
IN_THIS_PROCESS = (2, 1)
"""They take milliseconds; a long comparison keeps all other threads from running."""
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
    """Where graders run: a few at a time, and of a project fewer, so that one keeps no other waiting."""

    def __init__(self, judge: str | None) -> None:
        """`judge`: the endpoint that model-graded graders ask; `ConfigError` where it is no URL."""
        if judge is not None:
            HttpSampler(base_url=judge, model="")
        self.judge = judge
        self._processes = _slots(PROCESSES, "python graders")
        self._judged = _slots(JUDGED, "model-graded graders")
        self._here = _slots(IN_THIS_PROCESS, "graders")
        # Not those of all routes: whoever waits for a grader keeps nobody from an answer.
        self._threads = anyio.CapacityLimiter(math.inf)

    async def check(self, project: str, value: Any) -> Grader:
        """See `checked_grader`; a source of many lines takes a while."""
        async with self._here.slot(project):
            return await anyio.to_thread.run_sync(checked_grader, value, limiter=self._threads)

    async def run(
        self, project: str, grader: Grader, model_sample: str, item: Mapping[str, Any]
    ) -> SampleGrade:
        """Grade one sample. Where this is cancelled, the process that grades ends, then the slot is free."""
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
            return self._processes
        return self._judged if ScoreModel in kinds or LabelModel in kinds else self._here

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
                raise RefusedError(str(error), param="grader", code="python_graders_unfenced") from error
        return SampleGrade(grader, grade, error_of(grade, values), time.monotonic() - began_s)

    def _runner(self, grader: Grader, limits: Limits) -> GraderRunner:
        asked = {
            single_grader.model
            for single_grader in single_graders(grader)
            if isinstance(single_grader, ScoreModel | LabelModel)
        }
        judges: dict[str, Sampler] = {}
        if self.judge is not None:
            judges = {model: HttpSampler(base_url=self.judge, model=model, max_retries=1) for model in asked}
        try:
            return GraderRunner(grader, Tools(judges=judges, limits=limits))
        except ConfigError as error:
            cure = "Start 'assay serve' with --judge URL, or choose another grader."
            raise RefusedError(f"{error} {cure}", param="grader", code="grader_not_served") from error


def _slots(at_once: tuple[int, int], title: str) -> FairSlots:
    return FairSlots(*at_once, title=title, code="graders_busy", max_waiting=MAX_WAITING, wait_s=WAIT_S)


def checked_grader(value: Any, where: str = "grader") -> Grader:
    """A grader, or a 400 that says what is wrong with it; `where` it stands in the request."""
    try:
        grader = _GRADER.validate_python(value)
        check_sample_fields(grader, where)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        kinds = {
            arg
            for one in get_args(get_args(Grader)[0])
            for arg in get_args(one.model_fields["type"].annotation)
        }
        names = [
            str(part) for part in first["loc"] if part not in kinds and not str(part).startswith("function-")
        ]
        param = ".".join([where, *names])
        message = first["msg"].removeprefix("Value error, ").removesuffix(".")
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
