"""Evaluates the hypotheses of a case by their predictions only.

Votes are listed, but do not affect verdict or rank. A prediction that two hypotheses share does not
distinguish them, so it establishes neither.
"""

import shlex
from collections import Counter

from assay.base.units import number_of
from assay.records.case import (
    Case,
    CaseEvidence,
    CaseStatus,
    CaseVerdict,
    HypothesisStatus,
    Prediction,
    PredictionStatus,
)

RANK: dict[CaseVerdict, int] = {"established": 0, "supported": 1, "unknown": 2, "refuted": 3}


def evaluate_case(case: Case) -> CaseStatus:
    """Return the hypotheses, best first; ties in order of creation."""
    latest = {evidence.prediction: evidence for evidence in case.evidence}
    distinct = Counter(
        {(prediction.command, prediction.expect, prediction.hypothesis) for prediction in case.predictions}
    )
    makers = Counter((command, expect) for command, expect, _ in distinct)
    hypotheses = sorted(
        (_of_hypothesis(case, number, latest, makers) for number in range(1, len(case.hypotheses) + 1)),
        key=lambda hypothesis: (
            RANK[hypothesis.verdict],
            hypothesis.failed - hypothesis.held,
            hypothesis.failed,
        ),
    )
    return CaseStatus(
        name=case.name,
        opened_s=case.opened_s,
        verdict=hypotheses[0].verdict if hypotheses else "unknown",
        because=_reason(hypotheses),
        symptoms=case.symptoms,
        hypotheses=tuple(hypotheses),
    )


def _of_hypothesis(
    case: Case,
    number: int,
    latest: dict[int, CaseEvidence],
    makers: Counter[tuple[tuple[str, ...], str]],
) -> HypothesisStatus:
    hypothesis = case.hypotheses[number - 1]
    ours = tuple(
        _of_prediction(prediction, latest.get(index), is_shared=makers[prediction.command, prediction.expect] > 1)
        for index, prediction in enumerate(case.predictions)
        if prediction.hypothesis == number
    )
    held, failed = (sum(our.outcome == outcome for our in ours) for outcome in ("held", "failed"))
    return HypothesisStatus(
        hypothesis=number,
        text=hypothesis.text,
        by=hypothesis.by,
        verdict=_verdict(ours, held=held, failed=failed),
        held=held,
        failed=failed,
        not_run=len(ours) - held - failed,
        votes=tuple(vote.by for vote in case.votes if vote.hypothesis == number),
        predictions=ours,
    )


def _of_prediction(prediction: Prediction, found: CaseEvidence | None, *, is_shared: bool) -> PredictionStatus:
    return PredictionStatus(
        command=shlex.join(("assay", *prediction.command)),
        expect=prediction.expect,
        is_shared=is_shared,
        outcome=None if found is None else found.outcome,
        seen="" if found is None else found.seen,
    )


def _verdict(predictions: tuple[PredictionStatus, ...], *, held: int, failed: int) -> CaseVerdict:
    if not held and not failed:
        return "unknown"
    if failed >= held:
        return "refuted"
    is_distinguished = any(prediction.outcome == "held" and not prediction.is_shared for prediction in predictions)
    return "established" if is_distinguished and not failed else "supported"


def _reason(hypotheses: list[HypothesisStatus]) -> str:
    if not hypotheses:
        return "no hypothesis yet: 'assay triage case check' proposes some, 'case add' adds one."
    first = hypotheses[0]
    if first.verdict in ("unknown", "refuted"):
        left = "none was answered" if first.verdict == "unknown" else "none stands"
        return f"of {number_of(len(hypotheses), 'hypothesis', 'hypotheses')}, {left}."
    also = sum(hypothesis.verdict == first.verdict for hypothesis in hypotheses) - 1
    ties = f"; so are {also} more" if also > 1 else "; so is one more" if also else ""
    num_tested = first.held + first.failed
    return f"{first.text}: {first.held} of {number_of(num_tested, 'prediction')} held{ties}."
