"""Rows of an eval run become results: a model answers where one is named, and every criterion gives its word.

row --messages--> model --text--> sample --criteria--> results      what fails, fails for its item alone
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from assay.inference.protocol import ModelSource
from assay.records.eval_run import (
    CriterionResult,
    EvalChunk,
    EvalItem,
    EvalRunCreated,
    GradedSample,
    ItemFault,
    ModelUsage,
)
from assay.scoring.grade import Grade, GraderRunner, Tools, sample_values
from assay.scoring.graders import sample_fields
from assay.scoring.http_sampler import HttpSampler
from assay.scoring.sampler import Completion, Message, Sampler, SamplerError, Sampling
from assay.scoring.template import UnknownVariableError, render, value_at
from assay.serving.evals.criteria import EvalCriterion, judges_of, read_criteria
from assay.serving.evals.data_source import (
    DEFAULT_SEED,
    CompletionsSource,
    EvalSource,
    ItemMessages,
    SourceOfRun,
)
from assay.serving.evals.runs import added_usage
from assay.serving.graders import error_of
from assay.workers.batch.models import Models, ModelSampler
from assay.workers.batch.rows import EvalRow

_ROLES = ("system", "developer", "user", "assistant")


class CountingSampler:
    """Asks another, and counts what that took."""

    def __init__(self, inner: Sampler, usage: dict[str, ModelUsage]) -> None:
        self._inner = inner
        self._usage = usage
        self.name = inner.name

    def sample(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling
    ) -> list[Completion | SamplerError]:
        """See `Sampler`."""
        found = self._inner.sample(prompts, sampling)
        note_usage(self._usage, self.name, found)
        return found


class _Answer(NamedTuple):
    """What an item is graded on."""

    sample: GradedSample | None
    values: dict[str, Any] | None
    """What templates look into; None of an item that got no answer."""


class RunGrader:
    """Grades one run's rows; to be closed, for graders keep processes."""

    def __init__(self, created: EvalRunCreated, models: Models) -> None:
        """`ConfigError` where this worker cannot apply a criterion."""
        self._created = created
        self._models = models
        self._source: EvalSource = source_of(created)
        self._usage: dict[str, ModelUsage] = {}
        self._criteria = read_criteria(created.testing_criteria)
        tools = Tools(judges=self._judges())
        self._closing = ExitStack()
        self._runners: list[GraderRunner] = []
        for each in self._criteria:
            runner = GraderRunner(each.grader, tools)
            self._closing.callback(runner.close)
            self._runners.append(runner)

    def close(self) -> None:
        """End the processes of python graders."""
        self._closing.close()

    def chunk(self, rows: Sequence[EvalRow], first: int, at_s: float) -> EvalChunk:
        """The results of rows that follow one another, the first of them in this place."""
        self._usage.clear()
        answers = self._answers(rows)
        values = [each.values for each in answers if each.values is not None]
        grades = [iter(runner.grade(values)) for runner in self._runners]
        items = []
        for index, (row, answer) in enumerate(zip(rows, answers, strict=True), start=first):
            results = tuple(
                _ungraded(criterion, answer)
                if answer.values is None
                else _result(criterion, next(found), answer.values)
                for criterion, found in zip(self._criteria, grades, strict=True)
            )
            items.append(
                EvalItem(
                    index=index,
                    at_s=at_s,
                    item=row.item,
                    status=_status(results),
                    sample=answer.sample,
                    results=results,
                )
            )
        return EvalChunk(items=tuple(items), usage=dict(self._usage))

    def _judges(self) -> dict[str, Sampler]:
        judges: dict[str, Sampler] = {}
        for name in judges_of(self._criteria):
            if name in self._created.sources:
                judges[name] = CountingSampler(self._sampler(name), self._usage)
            elif self._created.judge is not None:
                asked = HttpSampler(base_url=self._created.judge, model=name)
                judges[name] = CountingSampler(asked, self._usage)
        return judges

    def _sampler(self, name: str) -> ModelSampler:
        source = ModelSource.model_validate(self._created.sources[name])
        return ModelSampler(self._models, source, name)

    def _answers(self, rows: Sequence[EvalRow]) -> list[_Answer]:
        if not isinstance(self._source, CompletionsSource):
            return [_given(row) for row in rows]
        asked = [_messages(self._source, row) for row in rows]
        params = self._source.sampling_params
        sampling = Sampling(
            temperature=1.0 if params.temperature is None else params.temperature,
            top_p=params.top_p or 1.0,
            max_tokens=params.max_completion_tokens or 1,
            seed=DEFAULT_SEED if params.seed is None else params.seed,
        )
        prompts = [each for each in asked if not isinstance(each, ItemFault)]
        sampler = self._sampler(self._source.model)
        said = sampler.complete(prompts, sampling, max_tokens=params.max_completion_tokens)
        note_usage(self._usage, self._source.model, said)
        following = iter(said)
        return [
            _Answer(GradedSample(fault=each), None)
            if isinstance(each, ItemFault)
            else _answered(row, each, next(following))
            for row, each in zip(rows, asked, strict=True)
        ]


def source_of(created: EvalRunCreated) -> EvalSource:
    """A run's data source, as it was asked for."""
    return SourceOfRun.model_validate({"data_source": created.data_source}).data_source


def wants_samples(created: EvalRunCreated) -> bool:
    """Whether each row has to bring a sample: criteria read one, and no model is asked for any."""
    reads = any(sample_fields(each.grader) for each in read_criteria(created.testing_criteria))
    return reads and not created.model


def note_usage(usage: dict[str, ModelUsage], name: str, said: Sequence[Completion | SamplerError]) -> None:
    """Count what completions took."""
    drawn = [each for each in said if isinstance(each, Completion)]
    if not said:
        return
    more = ModelUsage(
        invocations=len(said),
        prompt_tokens=sum(each.prompt_tokens for each in drawn),
        completion_tokens=sum(each.completion_tokens for each in drawn),
    )
    usage[name] = added_usage(usage.get(name), more)


def _given(row: EvalRow) -> _Answer:
    if row.sample is None:
        return _Answer(None, {"sample": {}, "item": row.item})
    text = row.sample["choices"][0]["message"]["content"]
    sample = GradedSample(text=text, finish_reason="stop")
    return _Answer(sample, {"sample": row.sample, "item": row.item})


def _answered(row: EvalRow, messages: list[Message], said: Completion | SamplerError) -> _Answer:
    told = tuple({"role": message["role"], "content": message["content"]} for message in messages)
    if isinstance(said, SamplerError):
        failure = said.failure()
        fault = ItemFault(code=failure.kind, message=failure.text)
        return _Answer(GradedSample(messages=told, fault=fault), None)
    sample = GradedSample(
        text=said.text,
        messages=told,
        finish_reason=said.finish_reason,
        prompt_tokens=said.prompt_tokens,
        completion_tokens=said.completion_tokens,
    )
    return _Answer(sample, sample_values(said.text, row.item))


def _messages(source: CompletionsSource, row: EvalRow) -> list[Message] | ItemFault:
    """The conversation that an item makes, or why it makes none."""
    values = {"item": row.item}
    try:
        if not isinstance(source.input_messages, ItemMessages):
            turns = source.input_messages.template
            return [Message(role=turn.role, content=render(turn.template(), values)) for turn in turns]
        return _conversation(value_at(source.input_messages.item_reference, values))
    except UnknownVariableError as error:
        return ItemFault(code="invalid_variable_error", message=str(error))
    except ValueError as error:
        path = source.input_messages.item_reference  # type: ignore[union-attr]
        return ItemFault(code="invalid_messages", message=f"{path} is no conversation: {error}")


def _conversation(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ValueError("expected a list of messages")
    for place, turn in enumerate(value):
        is_message = isinstance(turn, Mapping) and turn.get("role") in _ROLES
        if not is_message or not isinstance(turn.get("content"), str):
            raise ValueError(
                f"message {place} has no role of {', '.join(_ROLES)}, or no content that is a text"
            )
    return [Message(role=turn["role"], content=turn["content"]) for turn in value]


def _result(criterion: EvalCriterion, grade: Grade, values: Mapping[str, Any]) -> CriterionResult:
    fault = None
    if grade.failure is not None:
        fault = ItemFault(code=error_of(grade, values) or "other_error", message=grade.failure.text)
    return CriterionResult(
        name=criterion.name,
        grader_type=criterion.grader.type,
        score=grade.score,
        passed=grade.score is not None and grade.score >= criterion.threshold,
        label=grade.label,
        fault=fault,
    )


def _ungraded(criterion: EvalCriterion, answer: _Answer) -> CriterionResult:
    """The result of an item without a sample, which says why by itself."""
    assert answer.sample is not None
    return CriterionResult(name=criterion.name, grader_type=criterion.grader.type, passed=False)


def _status(results: Sequence[CriterionResult]) -> Any:
    if any(result.score is None for result in results):
        return "error"
    return "pass" if all(result.passed for result in results) else "fail"
