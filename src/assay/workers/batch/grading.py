"""Grades rows of an eval run: generate samples if a model is named, then apply all criteria.

row --messages--> model --text--> sample --criteria--> results      a failure affects its item only
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from assay.evals.engine import EvalEngine, completions_of
from assay.inference.endpoint import HttpEngine
from assay.inference.protocol import Completion, Engine, Message, ModelSource, SamplerError, SamplingParams
from assay.records.eval_run import (
    CriterionResult,
    EvalChunk,
    EvalItem,
    EvalRunCreated,
    GradedSample,
    ItemFault,
    ModelUsage,
)
from assay.scoring.grade import Grade, sampler_failure
from assay.scoring.grader_runner import Tools, sample_values
from assay.scoring.graders import sample_fields
from assay.scoring.template import UnknownVariableError, render, value_at
from assay.serving.evals.criteria import EvalCriterion, judges_of, read_criteria
from assay.serving.evals.data_source import CompletionsSource, EvalSource, ItemMessages
from assay.serving.evals.runs import added_usage
from assay.serving.graders import error_of
from assay.workers.batch.models import EngineModels, WorkerEngine
from assay.workers.batch.rows import EvalRow

_SOURCE: TypeAdapter[EvalSource] = TypeAdapter(EvalSource)
_ROLES = ("system", "developer", "user", "assistant")


class CountingEngine(Engine):
    """Wraps an engine and counts its token usage."""

    def __init__(self, inner: Engine, usage: dict[str, ModelUsage]) -> None:
        self._inner = inner
        self._usage = usage
        self.name = inner.name

    def generate(self, prompts: Sequence[Sequence[Message]], params: SamplingParams) -> list[Completion | SamplerError]:
        """See `Engine`."""
        found = self._inner.generate(prompts, params)
        note_usage(self._usage, self.name, found)
        return found


_GradingInput = tuple[GradedSample | None, dict[str, Any] | None]
"""What an item is graded on: a sample and template variables; None instead of them if generation failed."""


class RunGrader:
    """Grades the rows of one run. Close it to end grader processes."""

    def __init__(self, created: EvalRunCreated, models: EngineModels) -> None:
        """Raises `ConfigError` if this worker cannot apply a criterion."""
        self._created = created
        self._models = models
        self._source: EvalSource = source_of(created)
        self._usage: dict[str, ModelUsage] = {}
        self._criteria = read_criteria(created.testing_criteria)
        graders = [criterion.grader for criterion in self._criteria]
        self._engine = EvalEngine(graders, Tools(judges=self._judges()))

    def close(self) -> None:
        self._engine.close()

    def chunk(self, rows: Sequence[EvalRow], first: int, at_s: float) -> EvalChunk:
        """Grade consecutive rows; `first`: index of the first."""
        self._usage.clear()
        inputs = self._inputs(rows)
        grades_of_items = self._engine.grades([values for _, values in inputs])
        items = []
        for index, row in enumerate(rows):
            (sample, values), grades = inputs[index], grades_of_items[index]
            if values is None or grades is None:  # the generation failed
                results = tuple(
                    CriterionResult(name=criterion.name, grader_type=criterion.grader.type, passed=False)
                    for criterion in self._criteria
                )
            else:
                results = tuple(
                    _result(criterion, grade, values) for criterion, grade in zip(self._criteria, grades, strict=True)
                )
            items.append(
                EvalItem(
                    index=first + index,
                    at_s=at_s,
                    item=row.item,
                    status=_status(results),
                    sample=sample,
                    results=results,
                )
            )
        return EvalChunk(items=tuple(items), usage=dict(self._usage))

    def _judges(self) -> dict[str, Engine]:
        judges: dict[str, Engine] = {}
        for name in judges_of(self._criteria):
            if name in self._created.sources:
                judges[name] = CountingEngine(self._sampler(name), self._usage)
            elif self._created.judge is not None:
                endpoint = HttpEngine(base_url=self._created.judge, model=name)
                judges[name] = CountingEngine(endpoint, self._usage)
        return judges

    def _sampler(self, name: str) -> WorkerEngine:
        source = ModelSource.model_validate(self._created.sources[name])
        return WorkerEngine(self._models, source, name)

    def _inputs(self, rows: Sequence[EvalRow]) -> list[_GradingInput]:
        if not isinstance(self._source, CompletionsSource):
            return [_input_of_row(row) for row in rows]
        conversations = [_messages(self._source, row) for row in rows]
        requested = self._source.sampling_params
        may_shorten, sampler = requested.max_completion_tokens is None, self._sampler(self._source.model)

        def generate(prompts: Sequence[Sequence[Message]]) -> list[Completion | SamplerError]:
            completions = sampler.generate(prompts, requested.params(), may_shorten=may_shorten)
            note_usage(self._usage, sampler.name, completions)
            return completions

        return [
            _input_of_completion(*item)
            for item in zip(rows, conversations, completions_of(conversations, generate), strict=True)
        ]


def source_of(created: EvalRunCreated) -> EvalSource:
    """Parse a run's data source."""
    return _SOURCE.validate_python(created.data_source)


def wants_samples(created: EvalRunCreated) -> bool:
    """Return whether rows must bring samples, because criteria read them and no model generates them."""
    reads = any(sample_fields(criterion.grader) for criterion in read_criteria(created.testing_criteria))
    return reads and not created.model


def note_usage(usage: dict[str, ModelUsage], name: str, completions: Sequence[Completion | SamplerError]) -> None:
    """Add the token counts of completions to `usage`."""
    succeeded = [completion for completion in completions if isinstance(completion, Completion)]
    if not completions:
        return
    more = ModelUsage(
        invocations=len(completions),
        prompt_tokens=sum(completion.prompt_tokens for completion in succeeded),
        completion_tokens=sum(completion.completion_tokens for completion in succeeded),
    )
    usage[name] = added_usage(usage.get(name), more)


def _input_of_row(row: EvalRow) -> _GradingInput:
    if row.sample is None:
        return None, {"sample": {}, "item": row.item}
    text = row.sample["choices"][0]["message"]["content"]
    sample = GradedSample(text=text, finish_reason="stop")
    return sample, {"sample": row.sample, "item": row.item}


def _input_of_completion(
    row: EvalRow, messages: list[Message] | ItemFault, completion: Completion | SamplerError | ItemFault
) -> _GradingInput:
    if isinstance(messages, ItemFault) or isinstance(completion, ItemFault):
        assert messages is completion, "a fault takes the place of both"
        return GradedSample(fault=completion), None
    input_messages = tuple({"role": message["role"], "content": message["content"]} for message in messages)
    if isinstance(completion, SamplerError):
        failure = sampler_failure(completion)
        fault = ItemFault(code=failure.kind, message=failure.text)
        return GradedSample(messages=input_messages, fault=fault), None
    sample = GradedSample(
        text=completion.text,
        messages=input_messages,
        finish_reason=completion.finish_reason,
        prompt_tokens=completion.prompt_tokens,
        completion_tokens=completion.completion_tokens,
    )
    return sample, sample_values(completion.text, row.item)


def _messages(source: CompletionsSource, row: EvalRow) -> list[Message] | ItemFault:
    """Return the conversation of an item, or a fault."""
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
        return ItemFault(code="invalid_messages", message=f"{path} is not a conversation: {error}")


def _conversation(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ValueError("expected a list of messages")
    for index, turn in enumerate(value):
        is_message = isinstance(turn, Mapping) and turn.get("role") in _ROLES
        if not is_message or not isinstance(turn.get("content"), str):
            raise ValueError(f"message {index} needs a role ({', '.join(_ROLES)}) and a text content")
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


def _status(results: Sequence[CriterionResult]) -> Any:
    if any(result.score is None for result in results):
        return "error"
    return "pass" if all(result.passed for result in results) else "fail"
