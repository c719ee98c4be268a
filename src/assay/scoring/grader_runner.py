"""Applies graders to samples.

    template -> text -> check / similarity / process / judge -> Grade

A judge's verdict is the last JSON object with one, anywhere in its output. Judges reason before they decide, in LaTeX
and code whose braces are not JSON, and write LaTeX backslashes into JSON strings, where most are invalid escapes.

A failing grader yields a failure of a named kind (the API's error names), never a score of 0, so that a broken
grader is not mistaken for a bad model.
"""

import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from assay.base.errors import ConfigError
from assay.base.parsing.nesting import parse_json
from assay.inference.protocol import Completion, Engine, Message, SamplerError
from assay.scoring.formula import Formula
from assay.scoring.grade import Grade, ItemFailure
from assay.scoring.graders import (
    Grader,
    LabelModel,
    MathAnswer,
    Multi,
    PythonGrader,
    ScoreModel,
    SingleGrader,
    StringCheck,
    TextSimilarity,
    single_graders,
)
from assay.scoring.math_answer import SOURCE, check_math_verify, math_answer, math_process
from assay.scoring.python_graders import required_fence
from assay.scoring.python_process import Limits, PythonProcess
from assay.scoring.template import UnknownVariableError, render
from assay.scoring.text_similarity import cosine_similarity, similarity

MAX_BRACES = 2000
"""Maximum number of braces tried, because parsing takes quadratic time on a text of braces."""
_BACKSLASH = re.compile(r'\\(?P<means>["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_READER = json.JSONDecoder(strict=False)
Values = Mapping[str, Any]
"""The variables of templates: `{"sample": {...}, "item": {...}}`."""


class Tools(NamedTuple):
    """Services that some graders need."""

    judges: Mapping[str, Engine] = {}
    """Judges by the grader's `model`; `*` is the default."""
    embedder: Engine | None = None
    limits: Limits = Limits()


def sample_values(output_text: str, item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template variables of one completion: `sample` and `item`.

    `sample.output_text` is stripped, because completions of a base model begin with a space; `sample.choices` hold
    the original text, and `sample.output_json` the parsed JSON, if any.
    """
    sample: dict[str, Any] = {
        "output_text": output_text.strip(),
        "choices": [{"message": {"role": "assistant", "content": output_text}}],
        "output_tools": [],
    }
    try:
        sample["output_json"] = parse_json(output_text)
    except ValueError:
        sample["output_json"] = None
    return {"sample": sample, "item": dict(item)}


class GraderRunner:
    """Runs one grader. Must be closed, because Python graders hold a process."""

    def __init__(self, grader: Grader, tools: Tools = Tools()) -> None:  # noqa: B008
        """Raises `ConfigError` if the grader needs a judge or embedder that `tools` lacks."""
        self._grader = grader
        self._tools = tools
        self._processes: dict[str, PythonProcess] = {}
        for single in single_graders(grader):
            self._check(single)

    def close(self) -> None:
        for process in self._processes.values():
            process.close()

    def grade(self, samples: Sequence[Values]) -> list[Grade]:
        """Return one grade for each sample, in order. Never raises because of a sample's content."""
        if not isinstance(self._grader, Multi):
            return self._single(self._grader, samples)
        formula = Formula(self._grader.calculate_output)
        parts = {name: self._single(grader, samples) for name, grader in self._grader.graders.items()}
        return [
            _combined(formula, {name: grades[index] for name, grades in parts.items()}) for index in range(len(samples))
        ]

    def _check(self, grader: SingleGrader) -> None:
        if isinstance(grader, ScoreModel | LabelModel):
            self._judge(grader.model)
        if isinstance(grader, MathAnswer):
            check_math_verify(f"grader '{grader.name}'")
        if isinstance(grader, TextSimilarity) and grader.evaluation_metric == "cosine" and not self._tools.embedder:
            raise ConfigError(
                f"grader '{grader.name}': cosine similarity needs an endpoint with embeddings. Name one "
                "(--judge URL), or choose another evaluation_metric, e.g. fuzzy_match."
            )

    def _judge(self, model: str) -> Engine:
        judge = self._tools.judges.get(model) or self._tools.judges.get("*")
        if judge is None:
            raise ConfigError(f"no endpoint is configured for judge '{model}'. Name one with --judge URL.")
        return judge

    def _single(self, grader: SingleGrader, samples: Sequence[Values]) -> list[Grade]:
        match grader:
            case StringCheck() | TextSimilarity() | MathAnswer():
                return [self._guarded_text(grader, values) for values in samples]
            case PythonGrader():
                return [self._python(grader, values) for values in samples]
            case ScoreModel() | LabelModel():
                return self._judge_samples(grader, samples)
        raise AssertionError(f"unknown grader {grader!r}")

    def _guarded_text(self, grader: StringCheck | TextSimilarity | MathAnswer, values: Values) -> Grade:
        try:
            # NFC, because one character can have several encodings that look the same.
            text, reference = (
                unicodedata.normalize("NFC", render(template, values)) for template in (grader.input, grader.reference)
            )
        except UnknownVariableError as error:
            return Grade(None, ItemFailure("invalid_variable_error", str(error)))
        if isinstance(grader, MathAnswer):
            process = self._processes.get(SOURCE)
            if process is None:
                process = self._processes[SOURCE] = math_process(required_fence())
            return math_answer(process, text, reference)
        if isinstance(grader, StringCheck):
            return Grade(float(string_check(grader.operation, text, reference)))
        if len(text) * len(reference) > self._tools.limits.compared_pairs:
            pairs = f"{len(text):,} characters with {len(reference):,}"
            return Grade(None, ItemFailure("sample_error", f"too long to compare: {pairs}"))
        if grader.evaluation_metric != "cosine":
            return Grade(similarity(grader.evaluation_metric, text, reference))
        assert self._tools.embedder is not None, "checked when the runner was made"
        try:
            first, second = self._tools.embedder.embed([text, reference])
            return Grade(cosine_similarity(first, second))
        except (SamplerError, ValueError) as error:
            return Grade(None, ItemFailure("model_grader_server_error", str(error)))

    def _python(self, grader: PythonGrader, values: Values) -> Grade:
        process = self._processes.get(grader.source)
        if process is None:
            process = PythonProcess(grader.source, self._tools.limits, required_fence())
            self._processes[grader.source] = process
        return process.grade(values["sample"], values["item"])

    def _judge_samples(self, grader: ScoreModel | LabelModel, samples: Sequence[Values]) -> list[Grade]:
        prompts = [_judge_prompt(grader, values) for values in samples]
        requests = [prompt for prompt in prompts if not isinstance(prompt, Grade)]
        replies = iter(
            self._judge(grader.model).generate(requests, grader.sampling_params.params()) if requests else ()
        )
        return [prompt if isinstance(prompt, Grade) else _judgement(grader, next(replies)) for prompt in prompts]


def string_check(operation: str, text: str, reference: str) -> bool:
    """Apply one of the API's four comparisons. Ignores surrounding white space; only an empty text contains an empty
    reference."""
    match operation:
        case "eq":
            return text.strip() == reference.strip()
        case "ne":
            return text.strip() != reference.strip()
        case "like":
            return reference in text if reference else not text
        case "ilike":
            return string_check("like", text.casefold(), reference.casefold())
    raise AssertionError(f"unknown operation {operation!r}")


def _combined(formula: Formula, grades: Mapping[str, Grade]) -> Grade:
    scores = {name: grade.score for name, grade in grades.items() if grade.score is not None}
    for name in sorted(formula.names):
        if (failure := grades[name].failure) is not None:
            return Grade(None, failure._replace(text=f"{failure.text} (grader '{name}')"), scores)
    try:
        return Grade(formula.value(scores), None, scores)
    except ValueError as error:
        return Grade(None, ItemFailure("formula_parse_error", str(error)), scores)


def _judge_prompt(grader: ScoreModel | LabelModel, values: Values) -> list[Message] | Grade:
    try:
        messages = [Message(role=turn.role, content=render(turn.template(), values)) for turn in grader.input]
    except UnknownVariableError as error:
        return Grade(None, ItemFailure("invalid_variable_error", str(error)))
    return [*messages, Message(role="system", content=_output_format(grader))]


def _output_format(grader: ScoreModel | LabelModel) -> str:
    if isinstance(grader, LabelModel):
        return f'Answer with one JSON object: {{"label": one of {json.dumps(list(grader.labels))}}}.'
    low, high = grader.range
    form = f'{{"steps": [your reasoning], "result": a number from {low:g} to {high:g}}}'
    return f"Answer with one JSON object: {form}."


def _judgement(grader: ScoreModel | LabelModel, completion: Completion | SamplerError) -> Grade:
    if (failure := judge_failure(completion)) is not None:
        return Grade(None, failure)
    assert isinstance(completion, Completion), completion
    if isinstance(grader, LabelModel):
        label = label_in(completion.text, grader.labels)
        if label is None:
            return Grade(None, ItemFailure("model_grader_parse_error", f"no label in {completion.text!r:.200}"))
        return Grade(float(label in grader.passing_labels), None, {}, label)
    score = result_in(completion.text)
    low, high = grader.range
    if score is None or not low <= score <= high:
        text = f"no number from {low:g} to {high:g} in {completion.text!r:.200}"
        return Grade(None, ItemFailure("model_grader_parse_error", text))
    return Grade(score)


def judge_failure(completion: Completion | SamplerError) -> ItemFailure | None:
    """Return the failure of an item whose judge failed or was cut off, since the verdict is at the end."""
    if isinstance(completion, Completion):
        if completion.finish_reason != "length":
            return None
        text = f"the judge's output was cut after {completion.completion_tokens:,} tokens: …{completion.text[-200:]!r}"
        return ItemFailure("model_grader_parse_error", text)
    is_refusal = completion.kind == "refusal"
    return ItemFailure("model_grader_refusal_error" if is_refusal else "model_grader_server_error", str(completion))


def label_in(text: str, labels: Sequence[str]) -> str | None:
    """Return the label of `{"label": ...}`, or the whole text if it is a label; None otherwise."""
    value = _last_value(text, "label", "result")
    if value is None:
        value = text.strip().strip("\"'.")
    return value if isinstance(value, str) and value in labels else None


def result_in(text: str) -> float | None:
    """Return the number of `{"result": ...}`, or the whole text if it is a number; None otherwise."""
    value = _last_value(text, "result")
    try:
        number = float(text if value is None else value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and not isinstance(value, bool) else None


def _last_value(text: str, *keys: str) -> Any:
    """Return the value of the first of `keys` in the last object that has one of them; None if none has."""
    for version in (text, _with_plain_backslashes(text)):
        for tree in reversed(list(_objects(version))):
            for key in keys:
                if tree.get(key) is not None:
                    return tree[key]
    return None


def _objects(text: str) -> Iterator[dict[str, Any]]:
    position = text.find("{")
    for _ in range(MAX_BRACES):
        if position < 0:
            return
        try:
            tree, end = _READER.raw_decode(text, position)
            yield tree
        except (ValueError, RecursionError):
            end = position + 1
        position = text.find("{", end)


def _with_plain_backslashes(text: str) -> str:
    """Double the backslashes that are invalid escapes in JSON."""
    return _BACKSLASH.sub(lambda match: match.group() if match["means"] else r"\\", text)
