"""Testing criteria: a grader and the score from which an item passes.

Without a threshold, an item needs the maximum: 1, or the top of a score model's range.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from assay.scoring.graders import (
    Grader,
    LabelModel,
    ScoreModel,
    TextSimilarity,
    needed_fields,
    sample_fields,
    single_graders,
)
from assay.serving.api_error import ApiError
from assay.serving.graders import parse_grader

PARAM = "testing_criteria"


class EvalCriterion(NamedTuple):
    """One testing criterion."""

    grader: Grader
    threshold: float
    """An item passes at this score or above."""

    @property
    def name(self) -> str:
        return self.grader.name


def read_criteria(trees: list[dict[str, Any]] | tuple[dict[str, Any], ...]) -> list[EvalCriterion]:
    """Parse criteria. Raises `ApiError` at the first invalid one."""
    found: list[EvalCriterion] = []
    for index, tree in enumerate(trees):
        where = f"{PARAM}.{index}"
        grader = parse_grader(tree, where)
        if grader.name in [criterion.name for criterion in found]:
            raise _invalid(f"Two criteria have the name {grader.name!r:.80}. Names must be unique.", f"{where}.name")
        _check_measures(grader, where)
        found.append(EvalCriterion(grader, _threshold(grader, where)))
    return found


def check_criteria(criteria: list[EvalCriterion], schema: Mapping[str, Any], *, has_samples: bool) -> None:
    """Raise `ApiError` if a criterion reads fields that no item, or no sample, of the eval has."""
    properties = schema.get("properties")
    for index, criterion in enumerate(criteria):
        where = f"{PARAM}.{index}"
        if isinstance(properties, Mapping) and (lacking := sorted(needed_fields(criterion.grader) - properties.keys())):
            raise _invalid(
                f"Criterion {criterion.name!r:.80} reads item.{lacking[0]}, which is not in item_schema: "
                f"{', '.join(map(str, properties)) or 'nothing'}.",
                where,
            )
        if not has_samples and (read := sorted(sample_fields(criterion.grader))):
            raise _invalid(
                f"Criterion {criterion.name!r:.80} reads sample.{read[0]}, and this eval has no samples. Set "
                "data_source_config.include_sample_schema to true.",
                where,
            )


def judges_of(criteria: list[EvalCriterion]) -> set[str]:
    """Return the models that the criteria use as judges."""
    return {
        single.model
        for criterion in criteria
        for single in single_graders(criterion.grader)
        if isinstance(single, ScoreModel | LabelModel)
    }


def _check_measures(grader: Grader, where: str) -> None:
    for single in single_graders(grader):
        if isinstance(single, TextSimilarity) and single.evaluation_metric == "cosine":
            raise ApiError(
                "evaluation_metric 'cosine' is not supported in evals. Use another, e.g. fuzzy_match.",
                param=f"{where}.evaluation_metric",
                code="grader_not_served",
            )


def _threshold(grader: Grader, where: str) -> float:
    declared = getattr(grader, "pass_threshold", None)
    if declared is not None:
        return float(declared)
    if isinstance(grader, TextSimilarity):
        raise _invalid(
            "A text_similarity criterion requires pass_threshold, the similarity from which an item passes.",
            f"{where}.pass_threshold",
        )
    return grader.range[1] if isinstance(grader, ScoreModel) else 1.0


def _invalid(message: str, param: str) -> ApiError:
    return ApiError(message, param=param, code="invalid_grader")
