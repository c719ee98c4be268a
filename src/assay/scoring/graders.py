"""Grader configurations in the API's format: string_check, text_similarity, python, score_model, label_model,
multi; and our own math_answer.

Benchmarks and RL rewards use the same graders. `assay.scoring.grade` applies them.
"""

import ast
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, field_validator, model_validator

from assay.base.config import FrozenConfig
from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError
from assay.base.names import meant
from assay.inference.protocol import DEFAULT_MAX_TOKENS, SamplingParams
from assay.scoring.formula import Formula
from assay.scoring.python_process import check_source
from assay.scoring.template import SAMPLE_FIELDS, check_template, fields_read
from assay.scoring.text_similarity import Measure

CheckedT = TypeVar("CheckedT")

RULES = 2
"""Version of the grading rules. Increase it when a change makes scores incomparable."""


def _checked_template(value: Any) -> Any:
    return _as_value_error(check_template, value) if isinstance(value, str) else value


def _as_value_error(check: Callable[[str], CheckedT], value: str) -> CheckedT:
    try:
        return check(value)
    except ConfigError as error:
        raise ValueError(str(error)) from error


Template = Annotated[str, BeforeValidator(_checked_template)]


class StringCheck(FrozenConfig):
    """1 if the comparison holds, else 0."""

    type: Literal["string_check"] = "string_check"
    name: str = "string_check"
    """In metrics."""

    input: Template
    """A template, as `{{ sample.output_text }}`."""

    reference: Template
    """A template, as `{{ item.answer }}`."""

    operation: Literal["eq", "ne", "like", "ilike"]
    """`like`: contains; `ilike`: in any case."""


class TextSimilarity(FrozenConfig):
    """Similarity of input and reference, 0 to 1."""

    type: Literal["text_similarity"] = "text_similarity"
    name: str = "text_similarity"
    """In metrics."""

    input: Template
    """A template."""

    reference: Template
    """A template, as `{{ item.answer }}`."""

    evaluation_metric: Measure
    pass_threshold: float | None = None
    """Least passing score."""


class MathAnswer(FrozenConfig):
    """1 if the last number or formula of the input equals the reference's, else 0.

    Needs the extra `math` (math-verify).
    """

    type: Literal["math_answer"] = "math_answer"
    name: str = "math_answer"
    """In metrics."""

    input: Template
    """A template."""

    reference: Template
    r"""The right result in plain text or LaTeX: `3/4`, `0.75`, `\frac{3}{4}`."""


class PythonGrader(FrozenConfig):
    """A function `grade(sample, item) -> float`."""

    type: Literal["python"] = "python"
    name: str = "python"
    """In metrics."""

    source: str
    """Python source."""

    image_tag: str | None = None
    """Ignored: this machine's Python runs the source."""
    pass_threshold: float | None = None
    """Least passing score."""

    @field_validator("source")
    @classmethod
    def _source_can_grade(cls, source: str) -> str:
        _as_value_error(check_source, source)
        return source


class TextPart(FrozenConfig):
    """A part of a message."""

    type: Literal["input_text", "text", "output_text"] = "input_text"
    text: Template
    """A template."""


class GraderMessage(FrozenConfig):
    """A message to the judge."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Template | TextPart | tuple[Template | TextPart, ...]
    """A template, or parts of one."""

    def template(self) -> str:
        match self.content:
            case str():
                return self.content
            case TextPart():
                return self.content.text
            case parts:
                return "".join(part if isinstance(part, str) else part.text for part in parts)


class JudgeSampling(FrozenConfig):
    """Sampling of the judge; the API's keys."""

    temperature: float | None = Field(default=None, ge=0.0)
    """Null: 0."""

    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    """Null: 1."""

    seed: int | None = None
    """Repeatable sampling, if the endpoint supports it."""

    max_completions_tokens: int | None = Field(default=None, ge=1)
    """Null: 1024."""

    reasoning_effort: str | None = None
    """Ignored."""

    def params(self) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature or 0.0,
            top_p=self.top_p or 1.0,
            max_tokens=self.max_completions_tokens or DEFAULT_MAX_TOKENS,
            seed=self.seed,
        )


class ScoreModel(FrozenConfig):
    """A judge that returns a number."""

    type: Literal["score_model"] = "score_model"
    name: str = "score_model"
    """In metrics."""

    model: str
    """Name at the endpoint."""

    input: tuple[GraderMessage, ...] = Field(min_length=1)
    """Messages, as templates."""

    range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest score; a number outside is a failure."""
    sampling_params: JudgeSampling = JudgeSampling()
    """For the judge."""

    pass_threshold: float | None = None
    """Least passing score."""

    @model_validator(mode="after")
    def _range_rises(self) -> "ScoreModel":
        if self.range[0] >= self.range[1]:
            raise ValueError(f"range={list(self.range)}: the first must be less than the second")
        return self


class LabelModel(FrozenConfig):
    """A judge that picks a label: 1 if it is a passing one, else 0."""

    type: Literal["label_model"] = "label_model"
    name: str = "label_model"
    """In metrics."""

    model: str
    """Name at the endpoint."""

    input: tuple[GraderMessage, ...] = Field(min_length=1)
    """Messages, as templates."""

    labels: tuple[str, ...] = Field(min_length=1)
    """The possible labels."""

    passing_labels: tuple[str, ...]
    """Those that score 1."""

    sampling_params: JudgeSampling = JudgeSampling()
    """For the judge."""

    @model_validator(mode="after")
    def _passing_labels_are_labels(self) -> "LabelModel":
        if unknown := set(self.passing_labels) - set(self.labels):
            raise ValueError(f"passing_labels {sorted(unknown)} are not among labels {list(self.labels)}")
        return self


SingleGrader = Annotated[
    StringCheck | TextSimilarity | MathAnswer | PythonGrader | ScoreModel | LabelModel, Field(discriminator="type")
]


def _by_name(graders: Any) -> Any:
    """Accept a mapping, a list, or a single grader: the API's guides, examples and SDK use all three."""
    if isinstance(graders, Mapping):
        if isinstance(graders.get("type"), str):
            return {graders.get("name", "grader"): graders}
        return dict(graders)
    if isinstance(graders, list | tuple):
        names = [grader.get("name") if isinstance(grader, Mapping) else grader.name for grader in graders]
        if None in names or len(set(names)) < len(names):
            raise ValueError("graders in a list need a name each, all different")
        return dict(zip(names, graders, strict=True))
    return graders


class Multi(FrozenConfig):
    """A formula over the scores of several graders."""

    type: Literal["multi"] = "multi"
    name: str = "multi"
    """In metrics."""

    graders: Annotated[dict[str, SingleGrader], BeforeValidator(_by_name)] = Field(min_length=1)
    """By name."""

    calculate_output: str
    """E.g. `0.5 * exact + 0.5 * similar`."""

    pass_threshold: float | None = None
    """Least passing score."""

    @model_validator(mode="after")
    def _formula_uses_its_graders(self) -> "Multi":
        formula = _as_value_error(Formula, self.calculate_output)
        if unknown := formula.names - set(self.graders):
            raise ValueError(f"calculate_output uses {sorted(unknown)}, not among the graders {sorted(self.graders)}")
        return self


Grader = Annotated[
    StringCheck | TextSimilarity | MathAnswer | PythonGrader | ScoreModel | LabelModel | Multi,
    Field(discriminator="type"),
]


def grader_sha256(grader: Grader) -> str:
    """Return the SHA-256 of a grader without its name, and of the version of the grading rules."""
    return sha256_of_json([RULES, grader.model_dump(mode="json", exclude={"name"})])


def single_graders(grader: Grader) -> tuple[SingleGrader, ...]:
    """Return the grader itself, or the graders of a multi grader."""
    return tuple(grader.graders.values()) if isinstance(grader, Multi) else (grader,)


def needed_fields(grader: Grader) -> set[str]:
    """Return the item fields that templates require. Fields read by Python sources are not included."""
    return set().union(*(fields_read(text, "item") for text in _templates(grader)))


def fields_of_sources(grader: Grader) -> set[str]:
    """Return the item fields that Python sources read by constant keys."""
    return set().union(*(subscripted_fields(source, "item") for source in python_sources(grader)))


def sample_fields(grader: Grader) -> set[str]:
    """Return the sample fields that templates and Python sources read."""
    read: set[str] = set().union(*(fields_read(text, "sample") for text in _templates(grader)))
    return read.union(*(subscripted_fields(source, "sample") for source in python_sources(grader)))


def check_sample_fields(grader: Grader, where: str) -> None:
    """Raise `ConfigError` if a grader reads a field that samples lack."""
    for name in sorted(sample_fields(grader).difference(SAMPLE_FIELDS)):
        raise ConfigError(
            f"{where}: grader '{grader.name}' reads sample.{name}, which no sample has. Read one of: "
            f"{', '.join(SAMPLE_FIELDS)}."
        )


def check_item_fields(
    grader: Grader,
    present: Mapping[str, int],
    num_items: int,
    *,
    where: str,
    source: str,
    first_without: Callable[[str], str] | None = None,
) -> None:
    """Raise `ConfigError` if a grader reads a field that items lack.

    `present` maps a field to the number of items in which it is not null; `source` names the items, and
    `first_without` the first item without a field.
    """
    read = fields_of_sources(grader) - present.keys()
    lacking = {name for name in needed_fields(grader) if present.get(name, 0) < num_items}
    for name in sorted(lacking | read):
        without, near = num_items - present.get(name, 0), meant(name, present.keys() - {name})
        first = f" (the first: {first_without(name)})" if first_without and without < num_items else ""
        raise ConfigError(
            f"{where}: grader '{grader.name}' reads item.{name}, but {without:,} of {num_items:,} items of "
            f"{source} lack it{first}{near}. Fields that are there: {', '.join(sorted(present)) or 'none'}"
            ". Fix the grader, or give every item the field."
        )


def _templates(grader: Grader) -> list[str]:
    texts: list[str] = []
    for single in single_graders(grader):
        match single:
            case StringCheck() | TextSimilarity() | MathAnswer():
                texts += [single.input, single.reference]
            case ScoreModel() | LabelModel():
                texts += [turn.template() for turn in single.input]
            case PythonGrader():
                pass
    return texts


def score_range(grader: Grader) -> tuple[float, float]:
    """Return the lowest and highest possible score; infinite for Python sources and formulas."""
    match grader:
        case ScoreModel():
            return grader.range
        case TextSimilarity(evaluation_metric="cosine"):
            return -1.0, 1.0
        case PythonGrader() | Multi():
            return -math.inf, math.inf
    return 0.0, 1.0


def has_own_process(grader: Grader) -> bool:
    """Return whether a part of the grader runs in a separate process, which grades one sample at a time."""
    return any(isinstance(single_grader, PythonGrader | MathAnswer) for single_grader in single_graders(grader))


def python_sources(grader: Grader) -> list[str]:
    """Return the Python sources of a grader."""
    return [single_grader.source for single_grader in single_graders(grader) if isinstance(single_grader, PythonGrader)]


def subscripted_fields(source: str, argument: Literal["sample", "item"]) -> set[str]:
    """Return the constant keys with which `grade(sample, item)` subscripts one of its arguments.

    Fields that cannot be determined statically are found only when the grader runs. Leaves out keys that it tests
    (`'x' in item`) or reads inside `try`, and all keys if it reassigns the argument.
    """
    found = set[str]()
    for grade in ast.parse(source).body:
        if isinstance(grade, ast.FunctionDef) and grade.name == "grade":
            found |= _subscripted(grade, ["sample", "item"].index(argument))
    return found


def _subscripted(grade: ast.FunctionDef, position: int) -> set[str]:
    arguments = [*grade.args.posonlyargs, *grade.args.args]
    if len(arguments) <= position:
        return set()
    name = arguments[position].arg
    read, tested = set[str](), set[str]()
    for node in _not_tried(grade):
        match node:
            case ast.Name(id=of, ctx=ast.Store()) if of == name:
                return set()
            case ast.Subscript(ast.Name(id=of), ast.Constant(str() as field), ast.Load()) if of == name:
                read.add(field)
            case ast.Compare(ast.Constant(str() as field), [ast.In() | ast.NotIn()]):
                tested.add(field)
            case _:
                pass
    return read - tested


def _not_tried(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes below `node`, except those inside a `try` body."""
    nodes = [node]
    while nodes:
        node = nodes.pop()
        tried = set(map(id, node.body)) if isinstance(node, ast.Try) else set()
        for child in ast.iter_child_nodes(node):
            if id(child) not in tried:
                yield child
                nodes.append(child)
