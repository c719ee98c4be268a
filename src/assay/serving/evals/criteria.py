"""By what an item passes: a grader, and the score from which it does.

A criterion without a threshold wants the highest there is: 1, or the top of a judge's range.
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
from assay.serving.graders import checked_grader
from assay.serving.refusal import RefusedError

PARAM = "testing_criteria"


class EvalCriterion(NamedTuple):
    """One of an eval's."""

    grader: Grader
    threshold: float
    """From this score on an item passes."""

    @property
    def name(self) -> str:
        """Stands in results."""
        return self.grader.name


def read_criteria(trees: list[dict[str, Any]] | tuple[dict[str, Any], ...]) -> list[EvalCriterion]:
    """The criteria, or a 400 that says what is wrong with the first that is."""
    found: list[EvalCriterion] = []
    for place, tree in enumerate(trees):
        where = f"{PARAM}.{place}"
        grader = checked_grader(tree, where)
        if grader.name in [each.name for each in found]:
            raise _invalid(
                f"Two criteria are called {grader.name!r:.80}. Give each a name of its own.", f"{where}.name"
            )
        _check_measures(grader, where)
        found.append(EvalCriterion(grader, _threshold(grader, where)))
    return found


def check_criteria(criteria: list[EvalCriterion], schema: Mapping[str, Any], *, has_samples: bool) -> None:
    """Refuse one that reads what no item, or no sample, of an eval has."""
    there = schema.get("properties")
    for place, each in enumerate(criteria):
        where = f"{PARAM}.{place}"
        if isinstance(there, Mapping) and (lacking := sorted(needed_fields(each.grader) - there.keys())):
            raise _invalid(
                f"Criterion {each.name!r:.80} reads item.{lacking[0]}, which item_schema does not have: "
                f"{', '.join(map(str, there)) or 'nothing'}.",
                where,
            )
        if not has_samples and (read := sorted(sample_fields(each.grader))):
            raise _invalid(
                f"Criterion {each.name!r:.80} reads sample.{read[0]}, and this eval has no samples. Set "
                "data_source_config.include_sample_schema to true.",
                where,
            )


def judges_of(criteria: list[EvalCriterion]) -> set[str]:
    """The models that criteria ask."""
    return {
        single.model
        for each in criteria
        for single in single_graders(each.grader)
        if isinstance(single, ScoreModel | LabelModel)
    }


def _check_measures(grader: Grader, where: str) -> None:
    for single in single_graders(grader):
        if isinstance(single, TextSimilarity) and single.evaluation_metric == "cosine":
            raise RefusedError(
                "evaluation_metric 'cosine' is not served in evals. Choose another, e.g. fuzzy_match.",
                param=f"{where}.evaluation_metric",
                code="grader_not_served",
            )


def _threshold(grader: Grader, where: str) -> float:
    given = getattr(grader, "pass_threshold", None)
    if given is not None:
        return float(given)
    if isinstance(grader, TextSimilarity):
        raise _invalid(
            "A text_similarity criterion needs pass_threshold: the likeness from which an item passes.",
            f"{where}.pass_threshold",
        )
    return grader.range[1] if isinstance(grader, ScoreModel) else 1.0


def _invalid(message: str, param: str) -> RefusedError:
    return RefusedError(message, param=param, code="invalid_grader")
