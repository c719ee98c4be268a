"""One investigation as a notebook: symptoms, hypotheses with what each predicts, votes, and evidence.

Nothing in it is changed or removed; each list grows at its end. How the hypotheses stand follows from it."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.base.names import Name
from assay.records.record import Record
from assay.records.symptoms import Symptoms

Outcome = Literal["held", "failed", "not_run"]
"""`not_run`: it could not be asked, or did not answer; that says nothing for or against."""

CaseVerdict = Literal["established", "supported", "refuted", "unknown"]
"""`established`: a prediction held that no other hypothesis makes, and none failed. `supported`: more held than
failed. `refuted`: at least as many failed as held. `unknown`: none was answered."""


class Hypothesis(Record):
    """What may be the cause."""

    text: str
    """In the words of who had it; no two are alike."""
    by: str
    """Who; empty where `case check` proposed it."""
    at_s: float
    """Seconds since the Unix epoch."""


class Prediction(Record):
    """What will be seen if a hypothesis is true."""

    hypothesis: PositiveInt
    """Which one, in the order in which they were added."""
    command: tuple[str, ...]
    """The words behind `assay`: a command that only asks."""
    expect: str
    """`exit 1`, or `PATH=VALUE` of its JSON: `operators.finding.operator=aten::sum`."""
    at_s: float


class Vote(Record):
    """Who believes a hypothesis."""

    hypothesis: PositiveInt
    """Which one, in the order in which they were added."""
    by: str
    at_s: float


class CaseEvidence(Record):
    """What came of a prediction when it was run."""

    prediction: NonNegativeInt
    """Which one, from 0 in the order in which they were added."""
    outcome: Outcome
    seen: str
    """What was there in place of what was expected, or why nothing was."""
    exit_code: int | None
    """The command's; null where it was not started, or did not end in time."""
    output_sha256: str
    """The SHA-256 of what it printed."""
    code_version: str
    """The assay that was asked."""
    at_s: float
    took_s: NonNegativeFloat


class Case(Record):
    """The notebook."""

    name: Name
    opened_s: float
    """Seconds since the Unix epoch."""
    symptoms: Symptoms
    """What was known when it was opened."""
    hypotheses: tuple[Hypothesis, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    votes: tuple[Vote, ...] = ()
    evidence: tuple[CaseEvidence, ...] = ()
    """The latest of a prediction is the one that counts."""


class PredictionStatus(Record):
    """A prediction and its outcome."""

    command: str
    expect: str
    """Expected output."""
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
    """Of the first hypothesis."""
    because: str
    symptoms: Symptoms
    hypotheses: tuple[HypothesisStatus, ...]
    """Most evidence first."""
