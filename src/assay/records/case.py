"""A triage case: symptoms, hypotheses with their predictions, votes and evidence.

The lists are append-only. Verdicts are derived from them."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.base.names import Name
from assay.records.record import Record
from assay.records.symptoms import Symptoms

Outcome = Literal["held", "failed", "not_run"]
"""`not_run`: the command could not run or did not finish, so it is no evidence."""

CaseVerdict = Literal["established", "supported", "refuted", "unknown"]
"""`established`: a prediction unique to the hypothesis held, and none failed. `supported`: more held than
failed. `refuted`: at least as many failed as held. `unknown`: none has an outcome."""


class Hypothesis(Record):
    """A possible cause."""

    text: str
    """Unique within the case."""
    by: str
    """Author; empty if `case check` proposed it."""
    at_s: float
    """Seconds since the Unix epoch."""


class Prediction(Record):
    """An observation that a hypothesis predicts."""

    hypothesis: PositiveInt
    """Which one, in the order in which they were added."""
    command: tuple[str, ...]
    """Arguments of a read-only `assay` command."""
    expect: str
    """`exit 1`, or `PATH=VALUE` of its JSON: `operators.finding.operator=aten::sum`."""
    at_s: float


class Vote(Record):
    """A vote for a hypothesis."""

    hypothesis: PositiveInt
    """Which one, in the order in which they were added."""
    by: str
    at_s: float


class CaseEvidence(Record):
    """Result of running a prediction's command."""

    prediction: NonNegativeInt
    """Which one, from 0 in the order in which they were added."""
    outcome: Outcome
    seen: str
    """The actual output, or why there was none."""
    exit_code: int | None
    """Null if the command did not start or timed out."""
    output_sha256: str
    """SHA-256 of the output."""
    code_version: str
    """Version of assay that ran the command."""
    at_s: float
    took_s: NonNegativeFloat


class Case(Record):
    """An investigation."""

    name: Name
    opened_s: float
    """Seconds since the Unix epoch."""
    symptoms: Symptoms
    """Symptoms when the case was opened."""
    hypotheses: tuple[Hypothesis, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    votes: tuple[Vote, ...] = ()
    evidence: tuple[CaseEvidence, ...] = ()
    """The latest per prediction counts."""


class PredictionStatus(Record):
    """A prediction and its outcome."""

    command: str
    expect: str
    is_shared: bool
    """Another hypothesis predicts the same."""
    outcome: Outcome | None
    seen: str
    """The actual output."""


class HypothesisStatus(Record):
    """A hypothesis and its predictions."""

    hypothesis: PositiveInt
    text: str
    by: str
    """Empty if `case check` proposed it."""
    verdict: CaseVerdict
    held: NonNegativeInt
    failed: NonNegativeInt
    not_run: NonNegativeInt
    votes: tuple[str, ...]
    """Not counted."""
    predictions: tuple[PredictionStatus, ...]


class CaseStatus(Record):
    """A case and its hypotheses."""

    name: str
    opened_s: float
    verdict: CaseVerdict
    """The first hypothesis's."""
    because: str
    symptoms: Symptoms
    hypotheses: tuple[HypothesisStatus, ...]
    """Most evidence first."""
